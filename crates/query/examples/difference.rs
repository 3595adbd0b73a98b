//! What the difference of an update costs beside the update itself:
//! `cargo run --release -p query --example difference`.

use model::bson::{DocBuf, DocWriter, Timestamp, ValueRef};
use query::context::QueryContext;
use query::update::{Update, UpdateMoment};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: u32 = 300_000;

const MOMENT: UpdateMoment<'static> = UpdateMoment {
    matched: None,
    is_insert: false,
    timestamp: Timestamp {
        seconds: 1,
        increment: 1,
    },
};

/// Ten fields of a hundred bytes, a counter, a nested document, an array.
fn document() -> DocBuf {
    let mut out = DocWriter::new();
    out.append("_id", 1).append("n", 1);
    for field in 0..10 {
        out.append(&format!("field{field}"), "x".repeat(100).as_str());
    }
    out.begin_document("o").append("p", 1).append("q", 2).end();
    out.begin_array("a").push(1).push(2).end();
    out.finish()
}

fn measure(name: &str, spec: &DocBuf) {
    let context = QueryContext::new(0);
    let update = Update::parse(ValueRef::Document(spec.as_doc()), None, &context);
    let update = update.expect("an update");
    let before = document();
    let after = update.apply(before.as_doc(), MOMENT, &context);
    let after = after.expect("it applies").expect("it changes something");
    let nanoseconds = |work: &dyn Fn()| {
        let began = Instant::now();
        (0..ROUNDS).for_each(|_| work());
        began.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
    };
    let apply = nanoseconds(&|| {
        let _ = black_box(update.apply(black_box(before.as_doc()), MOMENT, &context));
    });
    let difference = nanoseconds(&|| {
        let after = black_box(after.as_doc());
        let _ = black_box(update.difference(black_box(before.as_doc()), after, MOMENT));
    });
    println!("{name:<28} apply {apply:>6.0} ns, difference {difference:>6.0} ns");
}

fn main() {
    let modifier = |operator: &str, path: &str| {
        let mut out = DocWriter::new();
        out.begin_document(operator).append(path, 7).end();
        out.finish()
    };
    measure("$set of the first field", &modifier("$set", "n"));
    measure("$set of the last text field", &modifier("$set", "field9"));
    measure("$inc of a nested field", &modifier("$inc", "o.q"));
    measure("$push", &modifier("$push", "a"));
    measure("$set of a new field", &modifier("$set", "new"));
}
