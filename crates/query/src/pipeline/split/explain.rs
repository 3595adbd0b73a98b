//! A split pipeline as explain shows it.
//!
//! ```text
//!   {mergeType: "mongos", splitPipeline: {shardsPart: [stage, …], mergerPart: [stage, …]}}
//!   {mergeType: "mongos", splitPipeline: null}       the shards do everything
//! ```
//!
//! Internal stages are shown under the names that users know. The merging half begins
//! with `$mergeCursors`, which says by what streams are sorted.

use super::{GROUP, Order, SAMPLE, Split};
use crate::pipeline::shown_unwound;
use crate::pipeline::stage::Step;
use model::bson::{DocBuf, DocWriter, ValueRef};
use model::key::Direction;

impl Split {
    /// Writes `mergeType` and `splitPipeline`.
    pub fn explain(&self, out: &mut DocWriter) {
        out.append("mergeType", "mongos");
        if self.passes_through() {
            out.append("splitPipeline", ValueRef::Null);
            return;
        }
        out.begin_document("splitPipeline");
        out.begin_array("shardsPart");
        for step in &self.shards {
            out.push(&shown(step));
        }
        out.end();
        out.begin_array("mergerPart");
        out.push(&merge_cursors(&self.order));
        let mut rest: &[Step] = &self.merging;
        while let [first, behind @ ..] = rest {
            rest = match shown_unwound(first, behind.first()) {
                Some(both) => {
                    out.push(&both);
                    &behind[1..]
                }
                None => {
                    out.push(&first.spec);
                    behind
                }
            };
        }
        if let Some(output) = &self.output {
            out.push(&output.spec);
        }
        out.end();
        out.end();
    }
}

/// A stage of the shards under the name it was written with.
fn shown(step: &Step) -> DocBuf {
    let (inner, name) = match step.name() {
        GROUP => ("group", "$group"),
        SAMPLE => ("sample", "$sample"),
        _ => return step.spec.clone(),
    };
    let spec = step.spec.as_doc().get_doc(step.name());
    let spec = spec.and_then(|spec| spec.get(inner));
    DocWriter::new()
        .with(name, spec.unwrap_or(ValueRef::Null))
        .finish()
}

fn merge_cursors(order: &Order) -> DocBuf {
    let mut out = DocWriter::new();
    out.begin_document("$mergeCursors");
    if let Order::Sorted(pattern) = order {
        out.begin_document("sort");
        for (path, direction) in pattern.fields() {
            let sign = match direction {
                Direction::Ascending => 1,
                Direction::Descending => -1,
            };
            out.append(path.as_str(), sign);
        }
        out.end();
    }
    out.end();
    out.finish()
}
