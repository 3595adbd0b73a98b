//! Cutting a collection into tasks, while the first of them are already being worked on.
//!
//! The source is sampled in one pass along the index on `_id`; each sampled value ends a partition,
//! which is handed to the workers at once. Sampling only makes tasks smaller: if it fails, whatever
//! is left becomes one partition, and nothing is skipped.

use crate::cluster::Cluster;
use crate::error::VerifyError;
use crate::merge::id_of;
use crate::namespace::Namespace;
use crate::partition::{Cutter, Partition, Sampling};
use bson::doc;

/// Hands the partitions of a collection to `emit`, as they come. Says why sampling failed, if it did.
pub async fn partitions<F>(
    source: &Cluster,
    namespace: &Namespace,
    sampling: Sampling,
    mut emit: F,
) -> Option<VerifyError>
where
    F: AsyncFnMut(Partition),
{
    let mut cutter = Cutter::new();
    let failed = sample(source, namespace, sampling, &mut cutter, &mut emit)
        .await
        .err();
    emit(cutter.finish()).await;
    failed
}

async fn sample<F>(
    source: &Cluster,
    namespace: &Namespace,
    sampling: Sampling,
    cutter: &mut Cutter,
    emit: &mut F,
) -> Result<(), VerifyError>
where
    F: AsyncFnMut(Partition),
{
    let only_id = doc! {"$project": {"_id": 1}};
    let in_order = doc! {"$sort": {"_id": 1}};
    let stages = match sampling {
        Sampling::None => return Ok(()),
        // Sorted first, which the index does, so that the first bounds come at once.
        Sampling::Rate(rate) => vec![in_order, doc! {"$match": {"$sampleRate": rate}}, only_id],
        Sampling::Count(count) => {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            vec![doc! {"$sample": {"size": count}}, only_id, in_order]
        }
    };
    let mut sampled = source.aggregate(namespace, &stages).await?;
    while let Some(batch) = sampled.next().await? {
        for document in batch.documents() {
            let id = id_of(document).map_err(|_| source.malformed("sample documents"))?;
            if let Some(partition) = cutter.cut(id.to_value()) {
                emit(partition).await;
            }
        }
    }
    Ok(())
}
