//! Commands that may compute for long, away from the connections.
//!
//! A few worker threads drive all connections, the log and the timers. An
//! expression, a regular expression or a condition as large as a book can keep
//! one of them busy for hours, from the parsing on (constants are folded there)
//! to the update of one document, and a handful of clients would stop the whole
//! server: nobody could even connect to kill them. So such a command is run with
//! the runtime told that its thread blocks: another thread takes the worker's
//! place, and the operating system shares the processors among them. It still
//! ends with its time, when it is killed, or when its client has gone.
//!
//! ```text
//!   request ─► only plain operators, not too large ─► on the worker
//!           └► anything else ─► block_in_place ─► the same code
//! ```
//!
//! Which is which must be known before anything is parsed, so it is read off the
//! names in the request ([`query::costly`]): what is not known to be cheap runs apart, which costs some microseconds
//! and is never wrong.
//! Steps over documents are bounded elsewhere (`Budget`), by number and by size.
//!
//! A cursor remembers how its command ran ([`Operation::runs_apart`]), and its
//! getMore fills batches the same way.
//!
//! [`Operation::runs_apart`]: crate::operation::Operation::runs_apart

use super::{Answer, Invocation};
use query::costly::{PLAIN_BYTES_MAX, has_costly, has_costly_argument};
use wire::Request;

pub(super) fn may_compute_long(request: &Request) -> bool {
    // These have no conditions or expressions, but much of other things.
    if matches!(
        request.name(),
        "insert" | "getMore" | "killCursors" | "hello" | "isMaster" | "ismaster"
    ) {
        return false;
    }
    let bytes = request.body_bytes().len();
    let beside: usize = (request.sequences().iter())
        .flat_map(|sequence| sequence.iter())
        .map(|statement| statement.len())
        .sum();
    bytes + beside > PLAIN_BYTES_MAX
        || has_costly_argument(request.body())
        || (request.sequences().iter())
            .flat_map(|sequence| sequence.iter())
            .any(has_costly)
}

/// Runs a command as if on a thread of its own.
pub(super) fn run_apart(invocation: &Invocation<'_>) -> Answer {
    invocation.operation.set_apart();
    tokio::task::block_in_place(|| {
        tokio::runtime::Handle::current().block_on(super::run(invocation))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use differential::notation::parse;
    use differential::value::{Value, encode};
    use model::bson::DocBuf;

    fn runs_apart(command: &str) -> bool {
        let Ok(Value::Document(mut fields)) = parse(command) else {
            panic!("{command} is not a document");
        };
        fields.push(("$db".to_owned(), Value::String("test".to_owned())));
        let body = DocBuf::from_bytes(encode(&fields)).expect("encoded BSON is valid");
        may_compute_long(&Request::from_parts(body, Vec::new()).expect("a command"))
    }

    #[test]
    fn what_is_known_to_be_cheap_stays_on_the_worker() {
        for command in [
            "{find: 'c', filter: {_id: 1}}",
            "{find: 'c', filter: {a: {$gt: 1}, $or: [{b: {$in: [1, 2]}}, {c: '$d'}]}, sort: {a: 1}}",
            "{update: 'c', updates: [{q: {_id: 1}, u: {$set: {a: 1}, $push: {b: {$each: [1], $slice: -5}}}}]}",
            "{insert: 'c', documents: [{a: {$reduce: 1}}]}",
            "{getMore: 1L, collection: 'c'}",
        ] {
            assert!(!runs_apart(command), "{command}");
        }
    }

    #[test]
    fn everything_else_runs_apart() {
        let large = format!(
            "{{find: 'c', filter: {{a: '{}'}}}}",
            "x".repeat(PLAIN_BYTES_MAX)
        );
        for command in [
            "{find: 'c', filter: {$expr: {$eq: ['$a', 1]}}}",
            "{find: 'c', projection: {a: {$map: {input: '$a', in: 1}}}}",
            "{find: 'c', filter: {$and: [{a: {$regex: '(a+)+b'}}]}}",
            "{update: 'c', updates: [{q: {}, u: [{$set: {a: {$concat: ['$a', '$a']}}}]}]}",
            "{delete: 'c', deletes: [{q: {$expr: 1}, limit: 1}]}",
            "{aggregate: 'c', pipeline: [{$match: {}}], cursor: {}}",
            "{findAndModify: 'c', query: {$expr: 1}, remove: true}",
            large.as_str(),
        ] {
            assert!(runs_apart(command), "{command:.80}");
        }
    }
}
