//! Random cases from a seed: documents of mixed types, and rows that mostly make sense over them.
//!
//! A seed gives a sequence of groups; each has a few documents and some rows over them. Fields have
//! habits (`n` is usually a number, `r` an array), so that operators usually meet the types they
//! want, and now and then do not. What differs is shrunk and printed as a group of a table.
//!
//! Left out on purpose: what has no defined result (random numbers, samples, order of sets, ties in
//! a sort) and functions whose last digit depends on the mathematics library.

mod expression;
mod filter;
mod pipeline;
mod shrink;
mod source;
mod update;

use std::time::{Duration, Instant};

use crate::notation::print;
use crate::row::Row;
use crate::run::{Judged, Pair, Sessions, Verdict};
use crate::table::{COLLECTION, Setup};
use crate::value::{Fields, Value};

pub use source::Source;

/// A row before it is text: keys with their values, then flags.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    pub pairs: Vec<(String, Vec<Value>)>,
    pub flags: Vec<&'static str>,
}

impl Draft {
    fn new(key: &str, values: Vec<Value>) -> Draft {
        // Which of several errors comes first is not what random cases are about.
        Draft {
            pairs: vec![(key.to_owned(), values)],
            flags: vec!["anyerror"],
        }
    }

    fn with(mut self, key: &str, value: impl Into<Value>) -> Draft {
        self.pairs.push((key.to_owned(), vec![value.into()]));
        self
    }

    pub fn text(&self) -> String {
        let pair = |(key, values): &(String, Vec<Value>)| {
            let values: Vec<String> = values.iter().map(print).collect();
            format!("{key}: {}", values.join(" -> "))
        };
        let parts = self
            .pairs
            .iter()
            .map(pair)
            .chain(self.flags.iter().map(|flag| (*flag).to_owned()));
        parts.collect::<Vec<_>>().join(" ")
    }
}

/// What to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Filter,
    Projection,
    Update,
    Pipeline,
    Expression,
}

impl Kind {
    pub const ALL: [Kind; 5] = [
        Kind::Filter,
        Kind::Projection,
        Kind::Update,
        Kind::Pipeline,
        Kind::Expression,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Filter => "filter",
            Kind::Projection => "projection",
            Kind::Update => "update",
            Kind::Pipeline => "pipeline",
            Kind::Expression => "expression",
        }
    }
}

/// How much to run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub cases: usize,
    pub budget: Duration,
    pub kinds: Vec<Kind>,
    /// After this many differences the run ends: they are probably one.
    pub differences_max: usize,
}

const ROWS_PER_GROUP: usize = 20;

/// Runs generated cases until the plan's cases, time or patience are used up.
pub fn run_generated(pair: &Pair, plan: &Plan) -> Vec<Judged> {
    let mut sessions = Sessions::open(pair, 99);
    let started = Instant::now();
    let mut judged: Vec<Judged> = Vec::new();
    let mut found = 0;
    for number in 0.. {
        if judged.len() >= plan.cases
            || started.elapsed() >= plan.budget
            || found >= plan.differences_max
        {
            break;
        }
        let seed = plan.seed.wrapping_add(number);
        let kind = plan.kinds[number as usize % plan.kinds.len().max(1)];
        let (documents, drafts) = generate_group(seed, kind, ROWS_PER_GROUP);
        let setup = Setup::with_documents(documents.clone());
        let rows: Vec<Row> = drafts
            .iter()
            .filter_map(|draft| Row::parse(0, &draft.text()).ok())
            .collect();
        assert_eq!(
            rows.len(),
            drafts.len(),
            "every generated row can be read back"
        );
        let verdicts = sessions.run(&setup, &rows.iter().collect::<Vec<_>>());
        for (index, (draft, verdict)) in drafts.iter().zip(verdicts).enumerate() {
            let (text, verdict) = match verdict {
                Verdict::Differs(_) => {
                    found += 1;
                    shrink::shrink(&mut sessions, &documents, draft, verdict)
                }
                other => (draft.text(), other),
            };
            judged.push(Judged {
                table: "generated".to_owned(),
                case: format!("generated/{} seed {seed}:{index}", kind.name()),
                text,
                verdict,
            });
        }
    }
    judged
}

/// The documents and rows that a seed stands for.
pub fn generate_group(seed: u64, kind: Kind, rows: usize) -> (Vec<Fields>, Vec<Draft>) {
    let mut source = Source::new(seed);
    let documents = source.documents();
    let drafts = (0..rows).map(|_| draft(&mut source, kind)).collect();
    (documents, drafts)
}

fn draft(source: &mut Source, kind: Kind) -> Draft {
    match kind {
        Kind::Filter => {
            let draft = Draft::new("filter", vec![filter::filter(source, 2)]);
            match source.below(3) {
                0 => draft,
                1 => draft.with("sort", source.sort()),
                _ => {
                    let draft = draft
                        .with("sort", source.sort())
                        .with("limit", source.between(1, 5));
                    if source.chance(30) {
                        draft.with("skip", source.between(1, 4))
                    } else {
                        draft
                    }
                }
            }
        }
        Kind::Projection => {
            let filter = if source.chance(30) {
                filter::filter(source, 1)
            } else {
                Value::Document(Vec::new())
            };
            let draft = Draft::new("filter", vec![filter])
                .with("projection", pipeline::projection(source, true));
            draft.with(
                "sort",
                Value::Document(vec![("_id".to_owned(), Value::Int32(1))]),
            )
        }
        Kind::Update => update::update(source),
        Kind::Pipeline => pipeline::pipeline(source),
        Kind::Expression => Draft::new("expr", vec![expression::any(source, 3)]),
    }
}

/// Random cases as the text of a table, to look at or to keep.
pub fn as_tables(plan: &Plan) -> String {
    let mut out = String::new();
    for number in 0..plan.cases.div_ceil(ROWS_PER_GROUP) as u64 {
        let kind = plan.kinds[number as usize % plan.kinds.len().max(1)];
        let (documents, drafts) =
            generate_group(plan.seed.wrapping_add(number), kind, ROWS_PER_GROUP);
        let documents: Vec<String> = documents
            .iter()
            .map(crate::notation::print_fields)
            .collect();
        let rows: Vec<String> = drafts.iter().map(Draft::text).collect();
        out.push_str(&format!(
            "== {} {number}\ndocs: {}\n{}\n",
            kind.name(),
            documents.join(" "),
            rows.join("\n")
        ));
    }
    out
}

/// The text of a group that holds one case, ready to be pasted into a table.
fn as_table(documents: &[Fields], draft: &Draft) -> String {
    let documents: Vec<String> = documents
        .iter()
        .map(crate::notation::print_fields)
        .collect();
    debug_assert_eq!(
        COLLECTION, "c",
        "docs without a name go to the collection that rows use"
    );
    format!(
        "== found by a random case\ndocs: {}\n{}",
        documents.join(" "),
        draft.text()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_rows_and_all_can_be_read() {
        for seed in 0..40 {
            for kind in Kind::ALL {
                let (documents, drafts) = generate_group(seed, kind, 10);
                assert_eq!((documents, drafts.clone()), generate_group(seed, kind, 10));
                for draft in drafts {
                    let text = draft.text();
                    Row::parse(0, &text).unwrap_or_else(|error| panic!("{text}: {error}"));
                }
            }
        }
    }
}
