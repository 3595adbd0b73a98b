//! Reading just enough of a reply to know that it is right.
//!
//! A benchmark of errors is worthless, so every reply is checked; a full decode would cost more than
//! some servers' answer. This walks top-level elements of the reply, skips values by their length, and
//! looks only at `ok`, `n`, `nModified`, `writeErrors`, `writeConcernError` and the cursor's batch.
//! Lengths come from a server under test and are checked, never trusted.

use anyhow::{Context, Result, bail, ensure};
use bson::Document;

const DOUBLE: u8 = 0x01;
const STRING: u8 = 0x02;
const DOCUMENT: u8 = 0x03;
const ARRAY: u8 = 0x04;
const BOOLEAN: u8 = 0x08;
const INT32: u8 = 0x10;
const INT64: u8 = 0x12;

/// One element of a BSON document: its type, its name, and the bytes of its value.
#[derive(Debug, Clone, Copy)]
pub struct Element<'a> {
    kind: u8,
    name: &'a [u8],
    value: &'a [u8],
}

impl<'a> Element<'a> {
    /// Any number (or boolean) as a double; counts here are far below 2^53.
    fn number(&self) -> Result<f64> {
        match (self.kind, self.value) {
            (DOUBLE, value) => Ok(f64::from_le_bytes(value.try_into()?)),
            (INT32, value) => Ok(f64::from(i32::from_le_bytes(value.try_into()?))),
            (INT64, value) => Ok(i64::from_le_bytes(value.try_into()?) as f64),
            (BOOLEAN, value) => Ok(f64::from(value[0])),
            _ => bail!("{} is not a number", String::from_utf8_lossy(self.name)),
        }
    }

    fn nested(&self) -> Result<&'a [u8]> {
        ensure!(
            matches!(self.kind, DOCUMENT | ARRAY),
            "{} is neither a document nor an array",
            String::from_utf8_lossy(self.name)
        );
        Ok(self.value)
    }
}

/// Walks the elements of a document without decoding values.
struct Elements<'a> {
    rest: &'a [u8],
}

fn elements(document: &[u8]) -> Result<Elements<'_>> {
    let length = read_length(document)?;
    ensure!(
        length >= 5 && length <= document.len(),
        "a document's length is wrong"
    );
    Ok(Elements {
        rest: &document[4..length],
    })
}

fn read_length(bytes: &[u8]) -> Result<usize> {
    let prefix = bytes.get(..4).context("a length is cut off")?;
    let length = i32::from_le_bytes(prefix.try_into()?);
    usize::try_from(length).context("a length is negative")
}

impl<'a> Elements<'a> {
    fn next(&mut self) -> Result<Option<Element<'a>>> {
        let (&kind, rest) = self.rest.split_first().context("a document is cut off")?;
        if kind == 0 {
            return Ok(None);
        }
        let end = rest
            .iter()
            .position(|&byte| byte == 0)
            .context("a name is cut off")?;
        let name = &rest[..end];
        let rest = &rest[end + 1..];
        let size = value_size(kind, rest)?;
        ensure!(size <= rest.len(), "a value is cut off");
        let (value, rest) = rest.split_at(size);
        self.rest = rest;
        Ok(Some(Element { kind, name, value }))
    }
}

fn value_size(kind: u8, bytes: &[u8]) -> Result<usize> {
    Ok(match kind {
        DOUBLE | 0x09 | 0x11 | INT64 => 8,
        STRING | 0x0d | 0x0e => read_length(bytes)?.saturating_add(4),
        DOCUMENT | ARRAY | 0x0f => read_length(bytes)?,
        0x05 => read_length(bytes)?.saturating_add(5),
        0x07 => 12,
        BOOLEAN => 1,
        0x06 | 0x0a | 0x7f | 0xff => 0,
        0x0b => {
            let mut ends = bytes
                .iter()
                .enumerate()
                .filter(|(_, byte)| **byte == 0)
                .map(|(position, _)| position + 1);
            ends.next().context("a pattern is cut off")?;
            ends.next().context("pattern options are cut off")?
        }
        0x0c => read_length(bytes)?.saturating_add(4 + 12),
        INT32 => 4,
        0x13 => 16,
        other => bail!("unknown BSON type {other:#x}"),
    })
}

fn find<'a>(document: &'a [u8], name: &str) -> Result<Option<Element<'a>>> {
    let mut elements = elements(document)?;
    while let Some(element) = elements.next()? {
        if element.name == name.as_bytes() {
            return Ok(Some(element));
        }
    }
    Ok(None)
}

/// The whole reply as text, for the message of an error.
fn describe(reply: &[u8]) -> String {
    match Document::from_reader(reply) {
        Ok(document) => document.to_string(),
        Err(error) => format!("{} bytes that do not decode ({error})", reply.len()),
    }
}

/// The reply says `ok: 1`, and carries no error of a write.
pub fn expect_ok(reply: &[u8]) -> Result<()> {
    let mut ok = false;
    let mut elements = elements(reply)?;
    while let Some(element) = elements.next()? {
        match element.name {
            b"ok" => ok = element.number()? == 1.0,
            b"writeErrors" | b"writeConcernError" => bail!("a write failed: {}", describe(reply)),
            _ => {}
        }
    }
    ensure!(ok, "the server answered {}", describe(reply));
    Ok(())
}

/// A write that must have reached exactly this many documents.
pub fn expect_count(reply: &[u8], expected: u64) -> Result<()> {
    expect_ok(reply)?;
    let count = find(reply, "n")?.context("a write's reply has no n")?;
    ensure!(
        count.number()? == expected as f64,
        "expected n: {expected} in {}",
        describe(reply)
    );
    Ok(())
}

/// The cursor of a reply to find, getMore or aggregate.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    pub cursor: i64,
    documents: &'a [u8],
}

pub fn expect_batch(reply: &[u8]) -> Result<Batch<'_>> {
    expect_ok(reply)?;
    let cursor = find(reply, "cursor")?
        .with_context(|| format!("no cursor in {}", describe(reply)))?
        .nested()?;
    let mut batch = None;
    let mut id = None;
    let mut elements = elements(cursor)?;
    while let Some(element) = elements.next()? {
        match element.name {
            b"firstBatch" | b"nextBatch" => batch = Some(element.nested()?),
            b"id" if element.kind == INT64 => {
                id = Some(i64::from_le_bytes(element.value.try_into()?));
            }
            _ => {}
        }
    }
    Ok(Batch {
        cursor: id.context("a cursor has no int64 id")?,
        documents: batch.context("a cursor has no batch")?,
    })
}

impl Batch<'_> {
    pub fn count(&self) -> Result<u64> {
        let mut elements = elements(self.documents)?;
        let mut count = 0;
        while let Some(element) = elements.next()? {
            ensure!(element.kind == DOCUMENT, "a batch holds only documents");
            count += 1;
        }
        Ok(count)
    }

    /// The documents, as they came.
    pub fn documents(&self) -> Result<Vec<Vec<u8>>> {
        let mut elements = elements(self.documents)?;
        let mut documents = Vec::new();
        while let Some(element) = elements.next()? {
            documents.push(element.nested()?.to_vec());
        }
        Ok(documents)
    }

    /// The `_id` of the first document, where that is a string.
    pub fn first_key(&self) -> Result<&[u8]> {
        let first = elements(self.documents)?
            .next()?
            .context("no document came back")?;
        let key = find(first.nested()?, "_id")?.context("a document has no _id")?;
        ensure!(key.kind == STRING, "an _id is not a string");
        let text = key
            .value
            .len()
            .checked_sub(1)
            .and_then(|end| key.value.get(4..end));
        text.context("an _id is cut off")
    }

    /// The sum of a numeric field over all documents.
    pub fn sum(&self, field: &str) -> Result<f64> {
        let mut documents = elements(self.documents)?;
        let mut sum = 0.0;
        while let Some(document) = documents.next()? {
            let value = find(document.nested()?, field)?
                .with_context(|| format!("a result has no {field}"))?;
            sum += value.number()?;
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use bson::{Bson, doc};

    use super::*;

    fn bytes(document: Document) -> Vec<u8> {
        document.to_vec().expect("bytes")
    }

    #[test]
    fn ok_and_counts() {
        let table = [
            (doc! { "n": 1, "ok": 1.0 }, true),
            (doc! { "n": 1i64, "ok": 1 }, true),
            (doc! { "n": 2, "ok": 1.0 }, false),
            (doc! { "n": 1, "ok": 0.0 }, false),
            (doc! { "ok": 1.0 }, false),
            (
                doc! { "n": 1, "writeErrors": [{ "code": 11000 }], "ok": 1.0 },
                false,
            ),
            (
                doc! { "n": 1, "writeConcernError": { "code": 64 }, "ok": 1.0 },
                false,
            ),
        ];
        for (reply, right) in table {
            let text = reply.to_string();
            assert_eq!(expect_count(&bytes(reply), 1).is_ok(), right, "{text}");
        }
    }

    #[test]
    fn batches() {
        let reply = bytes(doc! {
            "cursor": {
                "firstBatch": [
                    { "_id": "user1", "count": 3, "other": Bson::Null },
                    { "_id": "user2", "count": 4.0 },
                ],
                "id": 7i64,
                "ns": "bench.t",
            },
            "ok": 1.0,
        });
        let batch = expect_batch(&reply).expect("a batch");
        assert_eq!(batch.cursor, 7);
        assert_eq!(batch.count().expect("a count"), 2);
        assert_eq!(batch.first_key().expect("a key"), b"user1");
        assert_eq!(batch.sum("count").expect("a sum"), 7.0);
        assert!(batch.sum("absent").is_err());
    }

    #[test]
    fn cut_off_replies_are_errors() {
        let whole =
            bytes(doc! { "cursor": { "firstBatch": [{ "_id": "user1" }], "id": 0i64 }, "ok": 1.0 });
        for length in 0..whole.len() {
            assert!(expect_batch(&whole[..length]).is_err(), "{length} bytes");
        }
    }
}
