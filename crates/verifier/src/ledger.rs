//! The documents that differ, as far as they were looked at: kept in the store, counted in memory.
//!
//! One record for each document, under its `_id`: noting the same document again replaces its record
//! and keeps the moment at which it was first seen, and a document that is found equal loses it. So
//! noting is idempotent, and a part of the work that is done twice counts once.
//!
//! The counts are read from the records when a run is resumed. Changes go through one lock, because
//! two tasks may note the same document (a scan by record id and the pass the other way).

use crate::difference::{Difference, show};
use crate::element::Value;
use crate::error::VerifyError;
use crate::order::listed;
use crate::record::{Mismatch, decode, mismatch_key, mismatch_prefix, put};
use crate::report::{DocumentMismatch, MismatchKind};
use crate::store::{Change, Store};
use crate::time::now_ms;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::Mutex as AsyncMutex;

const PAGE: usize = 1000;

/// How many documents of a collection differ, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KindCounts {
    pub missing: u64,
    pub extra: u64,
    pub content: u64,
    pub repeated: u64,
}

impl KindCounts {
    fn of(&mut self, kind: MismatchKind) -> &mut u64 {
        match kind {
            MismatchKind::Missing => &mut self.missing,
            MismatchKind::Extra => &mut self.extra,
            MismatchKind::Content => &mut self.content,
            MismatchKind::Repeated => &mut self.repeated,
        }
    }

    pub fn total(&self) -> u64 {
        self.missing + self.extra + self.content + self.repeated
    }
}

/// What a look at one document showed.
pub struct Judged {
    pub id: Value,
    /// None if it is the same on both sides.
    pub kind: Option<MismatchKind>,
    pub differences: Vec<Difference>,
    pub changed_ms: Option<i64>,
}

#[derive(Default)]
pub struct Ledger {
    counts: Mutex<BTreeMap<String, KindCounts>>,
    noting: AsyncMutex<()>,
}

impl Ledger {
    /// The ledger of a run, as its records have it.
    pub async fn load(store: &Store) -> Result<Ledger, VerifyError> {
        let ledger = Ledger::default();
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = store.page(b"m", after.as_deref(), PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(ledger);
            };
            after = Some(last.clone());
            for (_, bytes) in &page {
                let mismatch: Mismatch = decode(bytes)?;
                ledger.add(&mismatch.namespace, mismatch.kind, 1);
            }
        }
    }

    fn add(&self, namespace: &str, kind: MismatchKind, count: i64) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = counts.entry(namespace.to_owned()).or_default();
        let slot = entry.of(kind);
        *slot = slot.saturating_add_signed(count);
        if entry.total() == 0 {
            counts.remove(namespace);
        }
    }

    pub fn counts(&self) -> BTreeMap<String, KindCounts> {
        self.counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn total(&self) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.values().map(KindCounts::total).sum()
    }

    fn has_any(&self, namespace: &str) -> bool {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.contains_key(namespace)
    }

    /// Keeps what a look at documents of one collection showed, each of them once.
    pub async fn note(
        &self,
        store: &Store,
        namespace: &str,
        judged: &[Judged],
    ) -> Result<(), VerifyError> {
        let _noting = self.noting.lock().await;
        let now = now_ms();
        let any_before = self.has_any(namespace);
        let mut changes = Vec::new();
        let mut moved = Vec::new();
        for one in judged {
            let key = mismatch_key(namespace, &one.id);
            let before: Option<Mismatch> = match any_before {
                true => crate::record::read(store, &key).await?,
                false => None,
            };
            moved.extend(before.as_ref().map(|before| (before.kind, -1)));
            match one.kind {
                None => changes.extend(before.map(|_| Change::Delete(key))),
                Some(kind) => {
                    moved.push((kind, 1));
                    let record = Mismatch {
                        namespace: namespace.to_owned(),
                        id: one.id.clone(),
                        kind,
                        differences: one.differences.clone(),
                        first_seen_ms: before.as_ref().map_or(now, |before| before.first_seen_ms),
                        last_seen_ms: now,
                        changed_ms: one
                            .changed_ms
                            .max(before.and_then(|before| before.changed_ms)),
                    };
                    changes.push(put(key, &record)?);
                }
            }
        }
        store.write(changes).await?;
        for (kind, count) in moved {
            self.add(namespace, kind, count);
        }
        Ok(())
    }

    /// Forgets the documents of a collection, because it is no longer compared.
    pub async fn forget(&self, store: &Store, namespace: &str) -> Result<(), VerifyError> {
        let _noting = self.noting.lock().await;
        store.clear(&mismatch_prefix(namespace)).await?;
        self.counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(namespace);
        Ok(())
    }

    /// The first of the mismatches, as the report has them.
    pub async fn first(
        store: &Store,
        count_max: usize,
    ) -> Result<Vec<DocumentMismatch>, VerifyError> {
        let mut found = Vec::new();
        let mut after: Option<Vec<u8>> = None;
        while found.len() < count_max {
            let wanted = PAGE.min(count_max - found.len());
            let page = store.page(b"m", after.as_deref(), wanted).await?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (_, bytes) in &page {
                found.push(decode::<Mismatch>(bytes)?);
            }
        }
        // Keys are digests: within a collection they come in no order.
        found.sort_by(|one, other| {
            let names = one.namespace.cmp(&other.namespace);
            names.then_with(|| listed(one.id.as_ref(), other.id.as_ref()))
        });
        Ok(found.into_iter().map(shown).collect())
    }
}

fn shown(mismatch: Mismatch) -> DocumentMismatch {
    DocumentMismatch {
        namespace: mismatch.namespace,
        kind: mismatch.kind,
        id: show(mismatch.id.as_ref()),
        differences: mismatch.differences,
        first_seen_ms: mismatch.first_seen_ms,
        last_seen_ms: mismatch.last_seen_ms,
        changed_ms: mismatch.changed_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Place;

    fn judged(id: u8, kind: Option<MismatchKind>) -> Judged {
        Judged {
            id: Value {
                kind: crate::element::kind::INT32,
                bytes: vec![id, 0, 0, 0].into(),
            },
            kind,
            differences: Vec::new(),
            changed_ms: None,
        }
    }

    #[tokio::test]
    async fn a_document_counts_once_until_it_is_equal() {
        use MismatchKind::{Content, Missing};
        let store = Store::open(&Place::Memory).await.unwrap();
        let ledger = Ledger::default();
        let check = async |judgement: Judged, missing, content| {
            ledger.note(&store, "d.c", &[judgement]).await.unwrap();
            let counts = ledger.counts().get("d.c").copied().unwrap_or_default();
            assert_eq!((counts.missing, counts.content), (missing, content));
            let again = Ledger::load(&store).await.unwrap();
            assert_eq!(again.counts(), ledger.counts());
        };
        check(judged(1, None), 0, 0).await;
        check(judged(1, Some(Missing)), 1, 0).await;
        check(judged(1, Some(Missing)), 1, 0).await;
        check(judged(2, Some(Missing)), 2, 0).await;
        check(judged(1, Some(Content)), 1, 1).await;
        check(judged(2, None), 0, 1).await;
        check(judged(2, None), 0, 1).await;
        let first = Ledger::first(&store, 10).await.unwrap();
        assert_eq!(first.len(), 1);
        assert!(first[0].first_seen_ms <= first[0].last_seen_ms);
        for id in [9, 3, 200, 4] {
            check(judged(id, Some(Content)), 0, ledger.total() + 1).await;
        }
        let first = Ledger::first(&store, 10).await.unwrap();
        let ids: Vec<&str> = first.iter().map(|one| one.id.value.as_str()).collect();
        let expected = [1, 3, 4, 9, 200].map(|id| format!("{{\"$numberInt\":\"{id}\"}}"));
        assert_eq!(ids, expected);
        ledger.forget(&store, "d.c").await.unwrap();
        assert_eq!(ledger.total(), 0);
        assert_eq!(Ledger::load(&store).await.unwrap().total(), 0);
    }
}
