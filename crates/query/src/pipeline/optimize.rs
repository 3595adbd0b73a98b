//! Rearranges stages without changing what they mean, and hands the first ones
//! to the scan, where an index may serve them.
//!
//! - A `$match` moves towards the front, past stages that leave the fields it
//!   asks for alone; a conjunction moves in parts.
//! - A `$skip` moves past stages that only change documents.
//! - Neighbouring `$match`, `$skip` and `$limit` become one.
//! - A `$sort` knows how many of its documents are wanted.

use super::environment::ScanRequest;
use super::stage::{Stage, Step};
use crate::filter::Filter;
use model::bson::ValueRef;
use std::collections::BTreeSet;

pub(super) fn optimize(steps: Vec<Step>) -> Vec<Step> {
    let mut steps = move_matches(steps);
    merge_matches(&mut steps);
    move_skips(&mut steps);
    drop_overruled_sorts(&mut steps);
    bound_sorts(merge_windows(steps))
}

pub(super) fn match_step(filter: Filter) -> Step {
    Step::new("$match", &filter.to_document(), Stage::Match(filter))
}

fn move_matches(steps: Vec<Step>) -> Vec<Step> {
    let mut moved: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        let Stage::Match(filter) = step.stage else {
            moved.push(step);
            continue;
        };
        let parts = match filter {
            Filter::And(parts) => parts,
            other => vec![other],
        };
        let mut at_places: Vec<(usize, Filter)> = Vec::new();
        for part in parts {
            let mut at = moved.len();
            while at > 0 && may_pass(&part, &moved[at - 1].stage) {
                at -= 1;
            }
            at_places.push((at, part));
        }
        // From the back, so that earlier places stay what they are.
        let mut places: Vec<usize> = at_places.iter().map(|(at, _)| *at).collect();
        places.sort_unstable();
        places.dedup();
        if places.is_empty() {
            continue;
        }
        for place in places.into_iter().rev() {
            let mut here = Vec::new();
            at_places.retain_mut(|(at, part)| {
                if *at != place {
                    return true;
                }
                here.push(std::mem::replace(part, Filter::AlwaysTrue));
                false
            });
            let filter = match here.pop() {
                Some(only) if here.is_empty() => only,
                Some(last) => {
                    here.push(last);
                    Filter::And(here)
                }
                None => Filter::everything(),
            };
            moved.insert(place, match_step(filter));
        }
    }
    moved
}

/// Whether a condition may be asked before a stage instead of after it.
fn may_pass(filter: &Filter, stage: &Stage) -> bool {
    let keeps: &dyn Fn(&str) -> bool = match stage {
        // A sort without a limit keeps everything, and conditions may trade places.
        Stage::Sort { limit: None, .. } | Stage::Match(_) => &|_| true,
        Stage::Project(projector) => &|name| projector.keeps(name),
        Stage::Unwind(unwind) => &|name| unwind.keeps(name),
        Stage::Lookup(lookup) => &|name| lookup.keeps(name),
        Stage::GraphLookup(lookup) => &|name| lookup.keeps(name),
        Stage::Sort { limit: Some(_), .. }
        | Stage::Replace(_)
        | Stage::Limit(_)
        | Stage::Skip(_)
        | Stage::Count(_)
        | Stage::Group(_)
        | Stage::BucketAuto(_)
        | Stage::Sample { .. }
        | Stage::Redact(_)
        | Stage::Facet(_)
        | Stage::UnionWith(_)
        | Stage::Documents(_)
        | Stage::CollectionStats(..)
        | Stage::IndexStats(_)
        | Stage::CurrentOperations(_)
        | Stage::LocalSessions(_)
        | Stage::ChangeStream(_)
        | Stage::Out(_)
        | Stage::Merge(_) => return false,
    };
    asks_only_for(filter, keeps)
}

/// Whether all fields that a filter looks at are among those.
pub(super) fn asks_only_for(filter: &Filter, keeps: &dyn Fn(&str) -> bool) -> bool {
    match filter {
        Filter::And(parts) | Filter::Or(parts) | Filter::Nor(parts) => {
            parts.iter().all(|part| asks_only_for(part, keeps))
        }
        Filter::Not(part) => asks_only_for(part, keeps),
        Filter::Field { path, .. } => path
            .components()
            .first()
            .is_some_and(|first| keeps(first.name())),
        Filter::AlwaysTrue | Filter::AlwaysFalse => true,
        Filter::Expression { source, .. } => reads_only(source.as_ref(), keeps),
        // Chance must be asked as often as it was written.
        Filter::SampleRate(_) => false,
    }
}

/// Whether an expression reads no other fields than those. It is asked as it
/// was written: strings that only look like paths count as such.
pub(super) fn reads_only(source: ValueRef<'_>, keeps: &dyn Fn(&str) -> bool) -> bool {
    match source {
        ValueRef::String(text) => match text.strip_prefix('$') {
            None => true,
            Some(rest) => match rest.strip_prefix('$') {
                Some(variable) => {
                    let name = variable.split('.').next().unwrap_or(variable);
                    !matches!(name, "ROOT" | "CURRENT")
                }
                None => keeps(rest.split('.').next().unwrap_or(rest)),
            },
        },
        ValueRef::Document(doc) => doc.iter().all(|element| {
            // These read the whole document without saying so, or chance.
            !matches!(element.key(), "$getField" | "$rand" | "CURRENT")
                && reads_only(element.value(), keeps)
        }),
        ValueRef::Array(array) => array.iter().all(|value| reads_only(value, keeps)),
        _ => true,
    }
}

/// What is skipped need not be computed first.
fn move_skips(steps: &mut [Step]) {
    for start in 1..steps.len() {
        let mut at = start;
        while at > 0
            && matches!(steps[at].stage, Stage::Skip(_))
            && matches!(steps[at - 1].stage, Stage::Project(_) | Stage::Replace(_))
        {
            steps.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// A sort right behind another decides alone.
fn drop_overruled_sorts(steps: &mut Vec<Step>) {
    let is_sort = |step: &Step| matches!(step.stage, Stage::Sort { limit: None, .. });
    let mut at = 0;
    while at + 1 < steps.len() {
        if is_sort(&steps[at]) && is_sort(&steps[at + 1]) {
            steps.remove(at);
        } else {
            at += 1;
        }
    }
}

fn merge_matches(steps: &mut Vec<Step>) {
    let mut at = 0;
    while at < steps.len() {
        let next_is_match =
            matches!(steps.get(at + 1), Some(next) if matches!(next.stage, Stage::Match(_)));
        if !(next_is_match && matches!(steps[at].stage, Stage::Match(_))) {
            at += 1;
            continue;
        }
        let second = steps.remove(at + 1);
        if let (Stage::Match(first), Stage::Match(second)) = (&steps[at].stage, second.stage) {
            let both = Filter::And(vec![first.clone(), second]).optimized();
            steps[at] = match_step(both);
        }
    }
}

/// What a run of `$skip` and `$limit` lets through.
#[derive(Clone, Copy, Default)]
pub(super) struct Window {
    skip: u64,
    limit: Option<u64>,
}

impl Window {
    fn skip(&mut self, count: u64) {
        self.skip = self.skip.saturating_add(count);
        self.limit = self.limit.map(|limit| limit.saturating_sub(count));
    }

    fn limit(&mut self, count: u64) {
        self.limit = Some(self.limit.map_or(count, |limit| limit.min(count)));
    }

    /// How many documents have to be looked at; `None` if all.
    pub(super) fn end(self) -> Option<u64> {
        self.limit.map(|limit| self.skip.saturating_add(limit))
    }

    /// Takes in a stage, if it is of that kind.
    pub(super) fn take(&mut self, stage: &Stage) -> bool {
        match stage {
            Stage::Skip(count) => self.skip(*count),
            Stage::Limit(count) => self.limit(*count),
            _ => return false,
        }
        true
    }
}

fn merge_windows(steps: Vec<Step>) -> Vec<Step> {
    let mut merged = Vec::with_capacity(steps.len());
    let mut window = Window::default();
    let mut open = false;
    for step in steps {
        if window.take(&step.stage) {
            open = true;
            continue;
        }
        if std::mem::take(&mut open) {
            push_window(&mut merged, std::mem::take(&mut window));
        }
        merged.push(step);
    }
    if open {
        push_window(&mut merged, window);
    }
    merged
}

fn push_window(steps: &mut Vec<Step>, window: Window) {
    if window.skip > 0 {
        steps.push(Step::new(
            "$skip",
            window.skip as i64,
            Stage::Skip(window.skip),
        ));
    }
    if let Some(limit) = window.limit {
        steps.push(Step::new("$limit", limit as i64, Stage::Limit(limit)));
    }
}

/// Lets each sort know how many of its documents are wanted.
fn bound_sorts(mut steps: Vec<Step>) -> Vec<Step> {
    for at in 0..steps.len() {
        let mut window = Window::default();
        let mut behind = at + 1;
        while behind < steps.len() && window.take(&steps[behind].stage) {
            behind += 1;
        }
        if let (Stage::Sort { limit, .. }, Some(wanted)) = (&mut steps[at].stage, window.end()) {
            *limit = Some(wanted);
        }
    }
    steps
}

/// Moves what a scan can do from the front of the stages into its request.
pub(super) fn push_down(steps: Vec<Step>, request: &mut ScanRequest) -> Vec<Step> {
    let mut rest = steps.into_iter().peekable();
    if let Some(Stage::Match(filter)) = rest.peek().map(|step| &step.stage) {
        request.filter = filter.clone();
        rest.next();
    }
    if let Some(Stage::Sort { pattern, .. }) = rest.peek().map(|step| &step.stage) {
        request.sort = Some(pattern.clone());
        rest.next();
    }
    let mut window = Window::default();
    while rest.next_if(|step| window.take(&step.stage)).is_some() {}
    request.skip = window.skip;
    request.limit = window.limit;
    let rest: Vec<Step> = rest.collect();
    request.fields = needed_fields(&rest);
    rest
}

/// The fields that the stages look at, where that is easy to tell.
fn needed_fields(rest: &[Step]) -> Option<BTreeSet<String>> {
    match &rest.first()?.stage {
        Stage::Count(_) => Some(BTreeSet::new()),
        Stage::Project(projector) => Some(
            projector
                .only_fields()?
                .into_iter()
                .map(str::to_owned)
                .collect(),
        ),
        _ => None,
    }
}
