//! What a run found, as text: differences first, then a summary by table.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::run::{Judged, Verdict};

/// The differences, one block or (in brief) one line each, and the summary.
pub fn report(judged: &[Judged], brief: bool) -> String {
    let mut out = String::new();
    for case in judged.iter().filter(|case| case.verdict.is_failure()) {
        let lines = match &case.verdict {
            Verdict::Differs(lines) => lines.clone(),
            Verdict::AgreesUnexpectedly => {
                vec!["marked as known to differ, but agrees: remove the mark".to_owned()]
            }
            Verdict::Broken(reason) => vec![format!("the oracle fails: {reason}")],
            Verdict::Agrees | Verdict::KnownToDiffer | Verdict::NotForRouters => Vec::new(),
        };
        if brief {
            let first = lines
                .iter()
                .take(2)
                .map(|line| cut(line, 160))
                .collect::<Vec<_>>()
                .join("  ");
            let row = case.text.split_whitespace().collect::<Vec<_>>().join(" ");
            line(
                &mut out,
                format_args!("{}  {}  {first}", case.case, cut(&row, 100)),
            );
        } else {
            line(&mut out, format_args!("DIFFERS {}", case.case));
            line(&mut out, format_args!("    {}", case.text));
            for text in lines {
                line(&mut out, format_args!("        {text}"));
            }
        }
    }
    out.push_str(&summary(judged));
    out
}

fn summary(judged: &[Judged]) -> String {
    #[derive(Default)]
    struct Counts {
        rows: usize,
        failed: usize,
        known: usize,
    }
    let mut tables: BTreeMap<&str, Counts> = BTreeMap::new();
    for case in judged {
        for name in [case.table.as_str(), "~"] {
            let counts = tables.entry(name).or_default();
            counts.rows += 1;
            counts.failed += usize::from(case.verdict.is_failure());
            let known = matches!(
                case.verdict,
                Verdict::KnownToDiffer | Verdict::NotForRouters
            );
            counts.known += usize::from(known);
        }
    }
    let mut out = String::new();
    line(
        &mut out,
        format_args!(
            "{:<28} {:>6} {:>6} {:>6}",
            "table", "rows", "differ", "known"
        ),
    );
    for (name, counts) in &tables {
        let name = if *name == "~" { "total" } else { name };
        line(
            &mut out,
            format_args!(
                "{name:<28} {:>6} {:>6} {:>6}",
                counts.rows, counts.failed, counts.known
            ),
        );
    }
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing into a string cannot fail.
    let _ = out.write_fmt(text);
    out.push('\n');
}

fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
