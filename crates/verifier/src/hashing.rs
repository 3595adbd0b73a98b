//! Comparing by hashes that the servers make, if theirs show every difference.
//!
//! A hash saves the network the documents, and proves as much as reading them if documents that differ
//! have hashes that differ (but for one pair in 2^64, about). `$toHashedIndexKey` alone does not: it
//! takes 1 and 1.9 for the same, at any depth. So it is given the whole value as bytes, in one
//! of these forms:
//!
//! | expression                 | which servers                                   |
//! | ---                        | ---                                             |
//! | `$_internalKeyStringValue` | later versions of MongoDB, not 6.0              |
//! | `$_internalBsonBytes`      | TernDB                                          |
//!
//! Neither is documented by MongoDB, so nothing is taken on trust: both servers are asked for the hashes of
//! many small documents that differ as little as documents can. If two of them have the same hash and
//! size, or the two servers disagree on one, the expression is not used; if none is left,
//! the request is refused.

use crate::cluster::Cluster;
use crate::error::VerifyError;
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Decimal128, Document, Regex, Timestamp, doc};
use std::collections::BTreeSet;

const ACTION: &str = "hash documents";

/// The expressions that may do, with the documents' own bytes last.
fn expressions() -> [Document; 2] {
    [
        doc! {"$toHashedIndexKey": {"$_internalKeyStringValue": {"input": "$$ROOT"}}},
        doc! {"$toHashedIndexKey": {"$_internalBsonBytes": "$$ROOT"}},
    ]
}

/// An expression that shows every difference on both servers.
pub async fn choose(source: &Cluster, destination: &Cluster) -> Result<Document, VerifyError> {
    let mut why = String::new();
    for expression in expressions() {
        match check(source, destination, &expression).await? {
            Ok(()) => return Ok(expression),
            Err(reason) => why = reason,
        }
    }
    Err(VerifyError::settings(format!(
        "the servers cannot hash documents so that every difference shows ({why}): leave --hash out"
    )))
}

/// Whether an expression does; if not, why.
pub async fn check(
    source: &Cluster,
    destination: &Cluster,
    expression: &Document,
) -> Result<Result<(), String>, VerifyError> {
    let mut both = Vec::new();
    for cluster in [source, destination] {
        let (side, address) = (cluster.side, &cluster.address);
        match cluster.hashes_of_probes(expression).await? {
            Ok(hashes) => {
                let distinct: BTreeSet<&String> = hashes.iter().collect();
                if distinct.len() < hashes.len() {
                    let why =
                        format!("the {side} at {address} takes different values for the same");
                    return Ok(Err(why));
                }
                both.push(hashes);
            }
            Err(why) => return Ok(Err(format!("the {side} at {address}: {why}"))),
        }
    }
    Ok(match both.first() == both.last() {
        true => Ok(()),
        false => Err("they make different hashes of the same documents".to_owned()),
    })
}

impl Cluster {
    /// Hash and size of each probe as a text; or why the server does not tell.
    async fn hashes_of_probes(
        &self,
        expression: &Document,
    ) -> Result<Result<Vec<String>, String>, VerifyError> {
        let probes: Vec<Bson> = probes().into_iter().map(Bson::Document).collect();
        let wanted = probes.len();
        let command = doc! {"aggregate": 1, "cursor": {"batchSize": 10_000}, "pipeline": [
            {"$documents": {"$literal": probes}},
            {"$project": {"_id": 0, "h": expression.clone(), "s": {"$bsonSize": "$$ROOT"}}},
        ]};
        let reply = match self.command("admin", command, ACTION).await {
            Ok(reply) => reply,
            Err(VerifyError::Server { detail, .. }) => return Ok(Err(detail)),
            Err(error) => return Err(error),
        };
        let cursor = reply.get_document("cursor");
        let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch"));
        let batch = batch.map_err(|_| self.malformed(ACTION))?;
        let hashes: Vec<String> = batch.iter().map(ToString::to_string).collect();
        match hashes.len() == wanted {
            true => Ok(Ok(hashes)),
            false => Err(self.malformed(ACTION)),
        }
    }
}

/// Documents no two of which are the same, as alike as they can be.
fn probes() -> Vec<Document> {
    let decimal = |text: &str| Bson::Decimal128(text.parse::<Decimal128>().expect("a decimal"));
    let binary = |subtype: u8| {
        Bson::Binary(Binary {
            subtype: BinarySubtype::from(subtype),
            bytes: vec![1; 16],
        })
    };
    let regex = |options: &str| {
        Bson::RegularExpression(Regex {
            pattern: "a".to_owned().try_into().expect("no zero byte"),
            options: options.to_owned().try_into().expect("no zero byte"),
        })
    };
    let values = [
        Bson::Int32(1),
        Bson::Int64(1),
        Bson::Double(1.0),
        Bson::Double(1.25),
        Bson::Double(1.9),
        Bson::Double(1.0 + f64::EPSILON),
        decimal("1"),
        decimal("1.0"),
        decimal("1.00"),
        Bson::Int32(0),
        Bson::Int64(0),
        Bson::Double(0.0),
        Bson::Double(-0.0),
        decimal("0"),
        decimal("-0"),
        decimal("NaN"),
        Bson::Double(f64::NAN),
        Bson::Double(f64::INFINITY),
        Bson::Double(1e300),
        Bson::Double(1e301),
        Bson::Int64(i64::MAX),
        Bson::Int64(i64::MAX - 1),
        Bson::Double(i64::MAX as f64),
        Bson::DateTime(DateTime::from_millis(1)),
        Bson::Timestamp(Timestamp {
            time: 0,
            increment: 1,
        }),
        Bson::Null,
        Bson::Undefined,
        Bson::MinKey,
        Bson::MaxKey,
        Bson::Boolean(false),
        Bson::Boolean(true),
        Bson::String("a".to_owned()),
        Bson::String("A".to_owned()),
        Bson::Symbol("a".to_owned()),
        Bson::JavaScriptCode("a".to_owned()),
        Bson::String(String::new()),
        regex(""),
        regex("i"),
        binary(0),
        binary(4),
        binary(5),
        Bson::ObjectId(ObjectId::from_bytes([1; 12])),
        Bson::Document(doc! {}),
        Bson::Array(Vec::new()),
        Bson::Document(doc! {"0": 1}),
        Bson::Array(vec![Bson::Int32(1)]),
        Bson::Document(doc! {"a": 1, "b": 1}),
        Bson::Document(doc! {"b": 1, "a": 1}),
        Bson::Document(doc! {"a": {"b": 1}}),
        Bson::Document(doc! {"a": [{"b": 1}]}),
    ];
    let mut probes = Vec::new();
    for value in values {
        probes.push(doc! {"v": value.clone()});
        probes.push(doc! {"w": value.clone()});
        probes.push(doc! {"v": {"w": value.clone()}});
        probes.push(doc! {"v": [value.clone(), {"x": [value]}]});
    }
    probes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_probes_are_the_same() {
        let bytes: BTreeSet<Vec<u8>> = probes().iter().map(|one| one.to_vec().unwrap()).collect();
        assert_eq!(bytes.len(), probes().len());
    }
}
