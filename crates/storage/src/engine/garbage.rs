//! What merges leave out, and how the engine asks for it.
//!
//! The store says by a rule which keys nobody needs any more, after what made them so was synced. The engine makes a
//! filter for each merge, which asks the rule for every key.

use std::panic::RefUnwindSafe;
use std::sync::Arc;

use fjall::compaction::filter::{
    CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict,
};
use parking_lot::RwLock;

use super::GarbageRule;
use crate::giving_way;

/// A merge asks for the rule after so many keys.
pub(super) const LOOKS_PER_RULE: u32 = 1000;

/// The rule for garbage that holds now.
#[derive(Clone)]
pub(super) struct Garbage(Arc<RwLock<GarbageRule>>);

// The lock is never held while anything could unwind.
impl RefUnwindSafe for Garbage {}

impl Default for Garbage {
    fn default() -> Self {
        Self(Arc::new(RwLock::new(Arc::new(|_, _| false))))
    }
}

impl Garbage {
    pub fn set(&self, rule: GarbageRule) {
        *self.0.write() = rule;
    }

    pub fn rule(&self) -> GarbageRule {
        Arc::clone(&self.0.read())
    }
}

pub(super) struct GarbageFactory(pub Garbage);

impl Factory for GarbageFactory {
    fn name(&self) -> &str {
        "garbage"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(GarbageFilter {
            rule: self.0.rule(),
            garbage: self.0.clone(),
            looks_left: LOOKS_PER_RULE,
        })
    }
}

/// Leaves out what is garbage. A merge may take seconds, and what is dropped meanwhile need not be written any more:
/// so it asks for the rule time and again. What a rule covers was written before the rule was told, and so were all
/// tables that a merge reads: a later rule is as good for them as the one of its beginning.
///
/// And a merge gives way here, where the engine asks us something again and again.
struct GarbageFilter {
    rule: GarbageRule,
    garbage: Garbage,
    looks_left: u32,
}

impl CompactionFilter for GarbageFilter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        if self.looks_left == 0 {
            self.rule = self.garbage.rule();
            self.looks_left = LOOKS_PER_RULE;
        }
        self.looks_left -= 1;
        giving_way::look();
        // Nothing of ours lies apart from its key, so that values are at hand.
        Ok(if (self.rule)(item.key(), &|| item.value().ok()) {
            Verdict::Remove
        } else {
            Verdict::Keep
        })
    }
}
