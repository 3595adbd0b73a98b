//! What was found: as a value, as JSON, and as text for a terminal.
//!
//! ```text
//! anything different            ──► different (exit code 1)
//! else anything not verified    ──► unknown   (exit code 2)
//! else                          ──► equal     (exit code 0)
//! ```
//!
//! A difference that was found stays one, whatever else could not be read.

use crate::difference::{Difference, Shown};
use crate::metadata::MetadataMismatch;
use crate::record::DefinitionChange;
use crate::time::shown_moment;
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Equal,
    Different,
    /// It could not be told.
    Unknown,
}

impl Outcome {
    pub fn exit_code(self) -> u8 {
        match self {
            Outcome::Equal => 0,
            Outcome::Different => 1,
            Outcome::Unknown => 2,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MismatchKind {
    /// On the source only.
    Missing,
    /// On the destination only.
    Extra,
    Content,
    /// The `_id` is there more than once.
    Repeated,
}

impl fmt::Display for MismatchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MismatchKind::Missing => "missing",
            MismatchKind::Extra => "extra",
            MismatchKind::Content => "content",
            MismatchKind::Repeated => "repeated",
        })
    }
}

/// A document that is not the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DocumentMismatch {
    pub namespace: String,
    pub kind: MismatchKind,
    #[serde(rename = "_id")]
    pub id: Shown,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
    /// When it was first seen to differ, by this machine's clock.
    pub first_seen_ms: i64,
    pub last_seen_ms: i64,
    /// When it was last changed on either side, if it was seen to change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_ms: Option<i64>,
}

/// How many documents of a collection were what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Read in the scan.
    pub source_documents: u64,
    pub destination_documents: u64,
    pub source_bytes: u64,
    pub destination_bytes: u64,
    pub equal: u64,
    /// Looked at a second time, by `_id`.
    pub rechecked: u64,
    pub missing: u64,
    pub extra: u64,
    pub content: u64,
    pub repeated: u64,
    /// `_id`s that a side has more than once, the same on both sides or not.
    pub duplicates: u64,
}

impl Counts {
    pub fn mismatches(&self) -> u64 {
        self.missing + self.extra + self.content + self.repeated
    }

    pub fn count(&mut self, kind: MismatchKind) {
        *match kind {
            MismatchKind::Missing => &mut self.missing,
            MismatchKind::Extra => &mut self.extra,
            MismatchKind::Content => &mut self.content,
            MismatchKind::Repeated => &mut self.repeated,
        } += 1;
    }

    pub fn add(&mut self, other: &Counts) {
        self.source_documents += other.source_documents;
        self.destination_documents += other.destination_documents;
        self.source_bytes += other.source_bytes;
        self.destination_bytes += other.destination_bytes;
        self.equal += other.equal;
        self.rechecked += other.rechecked;
        self.missing += other.missing;
        self.extra += other.extra;
        self.content += other.content;
        self.repeated += other.repeated;
        self.duplicates += other.duplicates;
    }
}

/// A collection whose documents were compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CollectionReport {
    /// Its name on the source.
    pub namespace: String,
    /// Its name on the destination.
    pub destination: String,
    pub partitions: u64,
    #[serde(flatten)]
    pub counts: Counts,
}

/// Something that was asked for and could not be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unverified {
    pub namespace: String,
    pub why: String,
}

/// What was compared, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Scope {
    /// Patterns; empty means everything.
    pub include: Vec<String>,
    pub exclude: Vec<String>,
    pub map: Vec<String>,
    pub filter: Option<serde_json::Value>,
    /// `_id`, `natural` or `hashes`.
    pub read_by: &'static str,
    pub ignore_field_order: bool,
}

impl Scope {
    /// What was left out, in words; nothing if nothing was.
    fn narrowed(&self) -> String {
        let mut text = String::new();
        if !self.include.is_empty() {
            text.push_str(&format!(" in {}", self.include.join(", ")));
        }
        if !self.exclude.is_empty() {
            text.push_str(&format!(" without {}", self.exclude.join(", ")));
        }
        if let Some(filter) = &self.filter {
            text.push_str(&format!(" of documents that match {filter}"));
        }
        text
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub outcome: Outcome,
    /// Hosts, without credentials.
    pub from: String,
    pub to: String,
    pub scope: Scope,
    /// When the run was begun, by this machine's clock.
    pub started_ms: i64,
    /// Whether a later process went on with it.
    pub resumed: bool,
    /// Of the last process.
    pub seconds: f64,
    /// Rounds that were made, the scan included.
    pub generations: u64,
    pub totals: Counts,
    pub collections: Vec<CollectionReport>,
    pub metadata_mismatches: Vec<MetadataMismatch>,
    /// The first of them; `totals` counts all.
    pub mismatches: Vec<DocumentMismatch>,
    pub unverified: Vec<Unverified>,
    /// What was asked for and changed nothing.
    pub warnings: Vec<String>,
    /// What happened to collections and indexes during the run.
    pub definition_changes: Vec<DefinitionChange>,
    /// Whether what could not be verified failed for passing reasons alone: then the run is worth
    /// keeping, and to be gone on with.
    #[serde(skip)]
    pub may_do_better: bool,
}

impl Report {
    /// Settles the outcome from what was found.
    pub fn settle(mut self) -> Report {
        for collection in &self.collections {
            self.totals.add(&collection.counts);
        }
        let different = self.totals.mismatches() > 0 || !self.metadata_mismatches.is_empty();
        self.may_do_better &= !different;
        self.outcome = match (different, self.unverified.is_empty()) {
            (true, _) => Outcome::Different,
            (false, false) => Outcome::Unknown,
            (false, true) => Outcome::Equal,
        };
        self
    }

    pub fn to_json(&self) -> String {
        let mut text =
            serde_json::to_string_pretty(self).expect("a report holds nothing that JSON has not");
        text.push('\n');
        text
    }
}

/// How many mismatches the terminal shows; the JSON file has more.
const TERMINAL_MISMATCHES_MAX: usize = 20;
const TERMINAL_CHANGES_MAX: usize = 20;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for one in &self.metadata_mismatches {
            let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "nothing".to_owned());
            writeln!(f, "{}: {}", one.namespace, one.what)?;
            writeln!(f, "    source       {}", side(&one.source))?;
            writeln!(f, "    destination  {}", side(&one.destination))?;
        }
        for one in self.mismatches.iter().take(TERMINAL_MISMATCHES_MAX) {
            show_mismatch(f, one)?;
        }
        let shown = self.mismatches.len().min(TERMINAL_MISMATCHES_MAX) as u64;
        if self.totals.mismatches() > shown {
            let rest = self.totals.mismatches() - shown;
            let rest = counted(rest, "more mismatch", "more mismatches");
            writeln!(f, "… and {rest} (see --report)")?;
        }
        for one in self.definition_changes.iter().take(TERMINAL_CHANGES_MAX) {
            let to = one.to.as_ref().map(|to| format!(" to {to}"));
            writeln!(
                f,
                "{} on the {}: {} {}{}",
                shown_moment(one.at_ms),
                one.side,
                one.what,
                one.namespace,
                to.unwrap_or_default()
            )?;
        }
        if self.definition_changes.len() > TERMINAL_CHANGES_MAX {
            let rest = self.definition_changes.len() - TERMINAL_CHANGES_MAX;
            writeln!(
                f,
                "… and {rest} more changes of collections and indexes (see --report)"
            )?;
        }
        for one in &self.unverified {
            writeln!(f, "{}: not verified: {}", one.namespace, one.why)?;
        }
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        self.show_collections(f)?;
        self.show_summary(f)
    }
}

impl Report {
    fn show_collections(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self
            .collections
            .iter()
            .map(|one| one.namespace.chars().count());
        let width = names.max().unwrap_or(0).max("collection".len());
        writeln!(
            f,
            "{:width$} {:>12} {:>12} {:>12} {:>9} {:>9} {:>9} {:>9}",
            "collection",
            "source",
            "destination",
            "equal",
            "missing",
            "extra",
            "content",
            "repeated"
        )?;
        for one in &self.collections {
            let counts = &one.counts;
            writeln!(
                f,
                "{:width$} {:>12} {:>12} {:>12} {:>9} {:>9} {:>9} {:>9}",
                one.namespace,
                counts.source_documents,
                counts.destination_documents,
                counts.equal,
                counts.missing,
                counts.extra,
                counts.content,
                counts.repeated,
            )?;
        }
        for one in &self.collections {
            let duplicates = one.counts.duplicates;
            if duplicates > 0 {
                let name = &one.namespace;
                let ids = counted(duplicates, "_id is", "_ids are");
                writeln!(f, "{name}: {ids} there more than once")?;
            }
        }
        Ok(())
    }

    /// When it was begun and how it was asked for, as far as the summary does not say.
    fn show_scope(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "begun at {}", shown_moment(self.started_ms))?;
        if self.resumed {
            write!(f, ", gone on with later")?;
        }
        write!(f, "; read by {}", self.scope.read_by)?;
        if self.scope.ignore_field_order {
            write!(f, ", fields in any order")?;
        }
        if !self.scope.map.is_empty() {
            write!(f, ", with {}", self.scope.map.join(", "))?;
        }
        writeln!(f)
    }

    fn show_summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.totals;
        let pairs = counts.source_documents.max(counts.destination_documents);
        let rate = pairs as f64 / self.seconds.max(0.001);
        let in_time = format!(
            "{} in {:.1} s, {rate:.0} per second",
            documents(pairs),
            self.seconds
        );
        let narrowed = self.scope.narrowed();
        self.show_scope(f)?;
        match self.outcome {
            Outcome::Equal => writeln!(
                f,
                "EQUAL: {} and {} hold the same{narrowed} ({in_time})",
                self.from, self.to
            ),
            Outcome::Different => writeln!(
                f,
                "DIFFERENT: {} ({} missing, {} extra, {} content, {} repeated) and {}{narrowed} ({in_time})",
                documents(counts.mismatches()),
                counts.missing,
                counts.extra,
                counts.content,
                counts.repeated,
                counted(
                    self.metadata_mismatches.len() as u64,
                    "other thing",
                    "other things"
                ),
            ),
            Outcome::Unknown => writeln!(
                f,
                "COULD NOT TELL: no difference was found, but {} could not be verified{narrowed} ({in_time})",
                match self.unverified.len() {
                    1 => "one thing".to_owned(),
                    many => format!("{many} things"),
                },
            ),
        }
    }
}

fn documents(count: u64) -> String {
    counted(count, "document", "documents")
}

/// A number of things in words.
pub fn counted(count: u64, one: &str, several: &str) -> String {
    let what = if count == 1 { one } else { several };
    format!("{count} {what}")
}

fn show_mismatch(f: &mut fmt::Formatter<'_>, one: &DocumentMismatch) -> fmt::Result {
    let side = |side: &Option<Shown>| match side {
        None => "nothing".to_owned(),
        Some(shown) => format!("{} ({})", shown.value, shown.kind),
    };
    writeln!(
        f,
        "{}: {} _id {} ({})",
        one.namespace, one.kind, one.id.value, one.id.kind
    )?;
    let since = shown_moment(one.first_seen_ms);
    match one.changed_ms {
        Some(changed) => writeln!(
            f,
            "    since {since}, last changed {}",
            shown_moment(changed)
        )?,
        None => writeln!(f, "    since {since}")?,
    }
    for difference in &one.differences {
        writeln!(f, "    {}", difference.place())?;
        writeln!(f, "        source       {}", side(&difference.source))?;
        writeln!(f, "        destination  {}", side(&difference.destination))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(counts: Counts, unverified: usize, metadata: usize) -> Report {
        let mismatch = MetadataMismatch {
            namespace: "d.c".to_owned(),
            what: "type".to_owned(),
            source: None,
            destination: Some("view".to_owned()),
        };
        let not_verified = Unverified {
            namespace: "d.c".to_owned(),
            why: "because".to_owned(),
        };
        Report {
            outcome: Outcome::Unknown,
            from: "a".to_owned(),
            to: "b".to_owned(),
            scope: Scope {
                include: vec!["shop.*".to_owned()],
                filter: Some(serde_json::json!({"a": 1})),
                ..Scope::default()
            },
            started_ms: 0,
            resumed: false,
            seconds: 1.0,
            generations: 1,
            totals: Counts::default(),
            collections: vec![CollectionReport {
                namespace: "d.c".to_owned(),
                destination: "d.c".to_owned(),
                partitions: 1,
                counts,
            }],
            metadata_mismatches: vec![mismatch; metadata],
            mismatches: Vec::new(),
            unverified: vec![not_verified; unverified],
            warnings: Vec::new(),
            definition_changes: Vec::new(),
            may_do_better: false,
        }
        .settle()
    }

    #[test]
    fn the_outcome_follows_what_was_found() {
        let different = Counts {
            content: 1,
            ..Counts::default()
        };
        let check = |counts, unverified, metadata, code: u8, word: &str| {
            let report = report(counts, unverified, metadata);
            assert_eq!(report.outcome.exit_code(), code);
            assert!(report.to_string().contains(word), "{report}");
            let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
            assert_eq!(json["totals"]["content"], report.totals.content);
        };
        check(Counts::default(), 0, 0, 0, "EQUAL");
        let narrowed = r#"the same in shop.* of documents that match {"a":1} ("#;
        check(Counts::default(), 0, 0, 0, narrowed);
        check(Counts::default(), 0, 0, 0, "begun at 1970-01-01T00:00:00Z");
        check(Counts::default(), 1, 0, 2, "COULD NOT TELL");
        check(Counts::default(), 1, 1, 1, "DIFFERENT");
        check(different, 1, 0, 1, "DIFFERENT");
        check(different, 0, 0, 1, "1 content");
    }
}
