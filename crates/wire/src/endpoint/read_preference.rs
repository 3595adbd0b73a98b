//! Which member of a replica set a request may go to: `$readPreference` of its body.
//!
//! Left out: `maxStalenessSeconds` and hedged reads; members answer for themselves how far they are.

use model::bson::{Doc, DocBuf, DocWriter, ValueRef};
use model::text::document_quoted;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReadMode {
    #[default]
    Primary,
    PrimaryPreferred,
    Secondary,
    SecondaryPreferred,
    Nearest,
}

impl ReadMode {
    fn name(self) -> &'static str {
        match self {
            ReadMode::Primary => "primary",
            ReadMode::PrimaryPreferred => "primaryPreferred",
            ReadMode::Secondary => "secondary",
            ReadMode::SecondaryPreferred => "secondaryPreferred",
            ReadMode::Nearest => "nearest",
        }
    }
}

/// A mode, and sets of tags: the first set that any member has decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadPreference {
    pub mode: ReadMode,
    pub tag_sets: Vec<DocBuf>,
}

/// As MongoDB writes it in its errors.
impl fmt::Display for ReadPreference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = DocWriter::new().with("mode", self.mode.name());
        if !self.tag_sets.is_empty() {
            shown.begin_array("tags");
            for set in &self.tag_sets {
                shown.push(set);
            }
            shown.end();
        }
        f.write_str(&document_quoted(shown.finish().as_doc()))
    }
}

impl ReadPreference {
    /// What a request asks for. What cannot be understood counts as absent: whoever is asked
    /// checks the request and answers with the error.
    pub fn of(body: Doc<'_>) -> ReadPreference {
        let Some(preference) = body.get_doc("$readPreference") else {
            return ReadPreference::default();
        };
        let mode = match preference.get_str("mode") {
            Some("primaryPreferred") => ReadMode::PrimaryPreferred,
            Some("secondary") => ReadMode::Secondary,
            Some("secondaryPreferred") => ReadMode::SecondaryPreferred,
            Some("nearest") => ReadMode::Nearest,
            Some(_) | None => ReadMode::Primary,
        };
        let tag_sets = preference.get_array("tags").map_or(Vec::new(), |tags| {
            tags.iter()
                .filter_map(|set| match set {
                    ValueRef::Document(set) => Some(set.to_owned()),
                    _ => None,
                })
                .collect()
        });
        ReadPreference { mode, tag_sets }
    }

    /// Whether a member's tags contain a set.
    pub(super) fn has_tags(tags: Option<&DocBuf>, set: &DocBuf) -> bool {
        set.iter().all(|wanted| {
            let own = tags.and_then(|tags| tags.get(wanted.key()));
            own == Some(wanted.value())
        })
    }
}
