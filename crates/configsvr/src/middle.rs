//! Where a range is to be cut so that a share of its documents comes first.

use crate::collection;
use crate::commit::by;
use crate::documents::{self, CollectionEntry};
use crate::error::Fault;
use crate::tenure::Tenure;
use cluster::routing::RoutingTable;
use model::Code;
use model::bson::{DocBuf, DocWriter, ValueRef};
use model::number::Number;
use model::range::{KeyBound, KeyRange};
use model::shard_key::ShardKeyPattern;

/// A key inside a range that lies within one chunk, with about this share of its documents before it. `None` if
/// it holds too few keys. `documents` is how many there are, if somebody has an idea; else they are counted.
pub(crate) async fn key_within(
    tenure: &Tenure,
    entry: &CollectionEntry,
    table: &RoutingTable,
    range: &KeyRange,
    share: f64,
    documents: Option<i64>,
) -> Result<Option<(KeyBound, DocBuf)>, Fault> {
    let (name, owner) = (
        &entry.namespace,
        &table.find(range.min.as_bytes()).chunk.shard,
    );
    let bound = |key: &KeyBound| documents::bound(&table.pattern, key.as_bytes());
    let (min, max) = (bound(&range.min)?, bound(&range.max)?);
    if table.pattern.fields()[0].hashed {
        // Hashes are spread evenly: a share of the range is a share of the data.
        let Some(stored) = hash_within(&table.pattern, &min, &max, share) else {
            return Ok(None);
        };
        return Ok(Some((table.pattern.bound(stored.as_doc())?, stored)));
    }
    let indexes = collection::indexes(tenure, owner, name).await?;
    let on_id = by("key", by("_id", 1).as_doc());
    let index = indexes
        .iter()
        .chain([&on_id])
        .find(|index| collection::supports(index, entry.key.as_doc()))
        .and_then(|index| index.as_doc().get_doc("key"))
        .ok_or_else(|| Fault::new(Code::INVALID_OPTIONS, "there is no index for the shard key"))?;
    // An index may have more fields: from the least value of those on.
    let padded = |bound: &DocBuf| {
        let mut writer = DocWriter::new();
        for field in index.iter() {
            let value = bound.get(field.key()).unwrap_or(ValueRef::MinKey);
            writer.append(field.key(), value);
        }
        writer.finish()
    };
    let count = match documents {
        Some(documents) => documents,
        None => {
            let size = DocWriter::new()
                .with("dataSize", name.as_str())
                .with("keyPattern", index)
                .with("min", &padded(&min))
                .with("max", &padded(&max))
                .finish();
            let size = tenure.ask(owner, name.database(), size.as_doc()).await?;
            let count = size.get("numObjects").and_then(Number::of);
            count.map_or(0, |count| count.to_f64() as i64)
        }
    };
    let search = DocWriter::new()
        .with("find", name.collection())
        .with("hint", index)
        .with("min", &padded(&min))
        .with("max", &padded(&max))
        .with("skip", (count as f64 * share) as i64)
        .with("limit", 1)
        .with("singleBatch", true)
        .finish();
    let found = collection::ask_all(tenure, owner, name.database(), search).await?;
    let Some(middle) = found.first() else {
        return Ok(None);
    };
    let key = KeyBound::new(&table.pattern.key_of(middle.as_doc())?);
    if key <= range.min || key >= range.max {
        return Ok(None);
    }
    let stored = bound(&key)?;
    Ok(Some((key, stored)))
}

/// The bound with this share of the hashes of a range before it, of a key that begins with a hash.
fn hash_within(
    pattern: &ShardKeyPattern,
    min: &DocBuf,
    max: &DocBuf,
    share: f64,
) -> Option<DocBuf> {
    let end = |bound: &DocBuf| match bound.as_doc().first().map(|first| first.value()) {
        Some(ValueRef::Int64(hash)) => Some(i128::from(hash)),
        Some(ValueRef::MinKey) => Some(i128::from(i64::MIN)),
        Some(ValueRef::MaxKey) => Some(i128::from(i64::MAX)),
        _ => None,
    };
    let (min, max) = (end(min)?, end(max)?);
    let parts = (share.clamp(0.0, 1.0) * 1024.0) as i128;
    let middle = i64::try_from((min * (1024 - parts) + max * parts) / 1024).ok()?;
    if i128::from(middle) <= min || i128::from(middle) >= max {
        return None;
    }
    let mut writer = DocWriter::new();
    for (at, field) in pattern.fields().iter().enumerate() {
        match at {
            0 => writer.append(&field.path, middle),
            _ => writer.append(&field.path, ValueRef::MinKey),
        };
    }
    Some(writer.finish())
}
