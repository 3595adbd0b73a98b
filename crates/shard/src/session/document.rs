//! Session documents as they are stored: what a retry is answered from after a
//! restart or on another member.
//!
//! ```text
//!   meta key  [1][session]                    the session document
//!   value     [version 1 = 1][flags 1][time 8][wall ms 8][term][number][overflow documents][item]*
//!   meta key  [2][session][chunk 4]           overflow: items that were sealed
//!   value     [version 1 = 1][item]*
//!   meta key  [3][session]                    the image of the latest findAndModify
//!   value     [version 1 = 1][kind 1][time 8][number][statement][document]
//!
//!   session   [id 16], and [user 32] unless it is nobody's
//!   item      [effect 1][first statement][count - 1]           and for upserts [length][{_id}]
//! ```
//!
//! Numbers are varints, statements zigzag; times big endian. The time stands at a
//! fixed place, because it is known only when the entry is appended: it is filled
//! in then ([`Written::set_time`]).
//!
//! These documents change only inside of entries, together with the write that
//! they describe. Decoding checks everything: what cannot be read is an error.

use super::SessionId;
use super::history::{
    DOCUMENT_ITEMS_BYTES, Effect, Executed, History, Image, ImageKind, LastWrite,
};
use model::bson::{Doc, DocBuf};
use model::time::ClusterTime;
use model::{Code, Error};
use storage::entry::Encoder;
use storage::varint::{put, put_bytes, take, take_bytes};

const VERSION: u8 = 1;
const INCOMPLETE: u8 = 1;
/// Where the time stands, in session documents and in images.
const TIME_AT: usize = 2;
const TIME_BYTES: usize = 8;

// The keys of other documents are readable text: nothing of theirs begins so.
const SESSION: u8 = 1;
const OVERFLOW: u8 = 2;
const IMAGE: u8 = 3;

const INSERTED: u8 = 1;
const UPDATED: u8 = 2;
const DELETED: u8 = 3;
const UPDATED_IMAGE_BEFORE: u8 = 4;
const UPDATED_IMAGE_AFTER: u8 = 5;
const DELETED_IMAGE: u8 = 6;
const UPSERTED: u8 = 7;
const UPSERTED_IMAGE: u8 = 8;

/// Keys of session documents in the meta space.
pub(crate) struct SessionKey;

impl SessionKey {
    pub(crate) const SESSIONS: &'static [u8] = &[SESSION];
    pub(crate) const OVERFLOWS: &'static [u8] = &[OVERFLOW];
    pub(crate) const IMAGES: &'static [u8] = &[IMAGE];

    pub(crate) fn session(id: SessionId) -> Vec<u8> {
        key(SESSION, id)
    }

    pub(crate) fn image(id: SessionId) -> Vec<u8> {
        key(IMAGE, id)
    }

    pub(crate) fn overflow(id: SessionId, chunk: u32) -> Vec<u8> {
        let mut key = key(OVERFLOW, id);
        key.extend_from_slice(&chunk.to_be_bytes());
        key
    }

    /// The session of a session document or an image.
    pub(crate) fn parse(key: &[u8]) -> Option<SessionId> {
        match key {
            [SESSION | IMAGE, rest @ ..] => SessionId::from_key_bytes(rest),
            _ => None,
        }
    }
}

fn key(kind: u8, id: SessionId) -> Vec<u8> {
    let (bytes, length) = id.key_bytes();
    let mut key = Vec::with_capacity(1 + length + 4);
    key.push(kind);
    key.extend_from_slice(&bytes[..length]);
    key
}

fn damaged(what: &str) -> Error {
    Error::new(
        Code::INTERNAL_ERROR,
        format!("a session document is damaged: {what}"),
    )
}

/// A session document that was read.
#[derive(Debug, PartialEq)]
pub(crate) struct Stored {
    pub(crate) number: i64,
    pub(crate) last: LastWrite,
    pub(crate) overflow: u32,
    pub(super) incomplete: bool,
    pub(super) recent: Vec<Executed>,
}

/// An image that was read.
pub(crate) struct StoredImage {
    pub(crate) number: i64,
    pub(crate) statement: i32,
    pub(crate) time: ClusterTime,
    pub(crate) image: Image,
}

fn put_statement(out: &mut Vec<u8>, statement: i32) {
    put(
        out,
        u64::from(((statement << 1) ^ (statement >> 31)) as u32),
    );
}

fn take_statement(input: &mut &[u8]) -> Option<i32> {
    let zigzag = u32::try_from(take(input)?).ok()?;
    Some((zigzag >> 1) as i32 ^ -((zigzag & 1) as i32))
}

fn put_items(out: &mut Vec<u8>, items: &[Executed]) {
    for item in items {
        let (effect, id) = match &item.effect {
            Effect::Inserted => (INSERTED, None),
            Effect::Updated => (UPDATED, None),
            Effect::Deleted => (DELETED, None),
            Effect::UpdatedWithImage(ImageKind::Before) => (UPDATED_IMAGE_BEFORE, None),
            Effect::UpdatedWithImage(ImageKind::After | ImageKind::Inserted) => {
                (UPDATED_IMAGE_AFTER, None)
            }
            Effect::DeletedWithImage => (DELETED_IMAGE, None),
            Effect::Upserted(id) => (UPSERTED, Some(id)),
            Effect::UpsertedWithImage(id) => (UPSERTED_IMAGE, Some(id)),
        };
        out.push(effect);
        put_statement(out, item.first);
        put(out, u64::from(item.count - 1));
        if let Some(id) = id {
            put_bytes(out, id.as_bytes());
        }
    }
}

fn take_items(mut input: &[u8]) -> Result<Vec<Executed>, Error> {
    let mut items = Vec::new();
    while let Some((&effect, rest)) = input.split_first() {
        input = rest;
        let first = take_statement(&mut input).ok_or_else(|| damaged("statement"))?;
        let count = take(&mut input)
            .and_then(|count| u32::try_from(count).ok()?.checked_add(1))
            .ok_or_else(|| damaged("count of statements"))?;
        let id = |input: &mut &[u8]| {
            let bytes = take_bytes(input).ok_or_else(|| damaged("upserted id"))?;
            DocBuf::from_bytes(bytes.to_vec()).map_err(|_| damaged("upserted id"))
        };
        let effect = match effect {
            INSERTED => Effect::Inserted,
            UPDATED => Effect::Updated,
            DELETED => Effect::Deleted,
            UPDATED_IMAGE_BEFORE => Effect::UpdatedWithImage(ImageKind::Before),
            UPDATED_IMAGE_AFTER => Effect::UpdatedWithImage(ImageKind::After),
            DELETED_IMAGE => Effect::DeletedWithImage,
            UPSERTED => Effect::Upserted(id(&mut input)?),
            UPSERTED_IMAGE => Effect::UpsertedWithImage(id(&mut input)?),
            _ => return Err(damaged("effect")),
        };
        items.push(Executed {
            first,
            count,
            effect,
        });
    }
    Ok(items)
}

impl Stored {
    pub(crate) fn decode(value: &[u8]) -> Result<Self, Error> {
        let (&[version, flags], rest) = value
            .split_first_chunk::<TIME_AT>()
            .ok_or_else(|| damaged("beginning"))?;
        if version != VERSION || flags & !INCOMPLETE != 0 {
            return Err(damaged("version"));
        }
        let (time, rest) = take_time(rest)?;
        let (wall_ms, mut rest) = rest
            .split_first_chunk::<8>()
            .ok_or_else(|| damaged("wall time"))?;
        let term = take(&mut rest).ok_or_else(|| damaged("term"))?;
        let number = take_number(&mut rest)?;
        let overflow = take(&mut rest)
            .and_then(|count| u32::try_from(count).ok())
            .ok_or_else(|| damaged("overflow"))?;
        Ok(Self {
            number,
            last: LastWrite {
                time,
                term,
                wall_ms: i64::from_be_bytes(*wall_ms),
            },
            overflow,
            incomplete: flags & INCOMPLETE != 0,
            recent: take_items(rest)?,
        })
    }
}

fn take_time(input: &[u8]) -> Result<(ClusterTime, &[u8]), Error> {
    let (time, rest) = input
        .split_first_chunk::<TIME_BYTES>()
        .ok_or_else(|| damaged("time"))?;
    Ok((ClusterTime::from_u64(u64::from_be_bytes(*time)), rest))
}

fn take_number(input: &mut &[u8]) -> Result<i64, Error> {
    take(input)
        .and_then(|number| i64::try_from(number).ok())
        .ok_or_else(|| damaged("transaction number"))
}

/// The items of an overflow document.
pub(super) fn decode_overflow(value: &[u8]) -> Result<Vec<Executed>, Error> {
    match value.split_first() {
        Some((&VERSION, items)) => take_items(items),
        _ => Err(damaged("overflow")),
    }
}

impl StoredImage {
    pub(crate) fn decode(value: &[u8]) -> Result<Self, Error> {
        let (&[version, kind], rest) = value
            .split_first_chunk::<TIME_AT>()
            .ok_or_else(|| damaged("image"))?;
        let kind = match (version, kind) {
            (VERSION, 1) => ImageKind::Before,
            (VERSION, 2) => ImageKind::After,
            (VERSION, 3) => ImageKind::Inserted,
            _ => return Err(damaged("kind of image")),
        };
        let (time, mut rest) = take_time(rest)?;
        let number = take_number(&mut rest)?;
        let statement = take_statement(&mut rest).ok_or_else(|| damaged("statement"))?;
        let document = Doc::from_bytes(rest).map_err(|_| damaged("image"))?;
        Ok(Self {
            number,
            statement,
            time,
            image: Image {
                kind,
                document: document.to_owned(),
            },
        })
    }
}

/// What a write adds to a history, on its way into an entry.
pub(crate) struct Addition<'a> {
    pub(crate) session: SessionId,
    pub(crate) items: &'a [Executed],
    /// Of the statement that is the only item then.
    pub(crate) image: Option<&'a Image>,
    pub(crate) term: u64,
    pub(crate) wall_ms: i64,
}

/// Where in a payload the time is still missing.
#[derive(Default)]
pub(crate) struct Written {
    times_at: [Option<usize>; 2],
    /// Whether the items before went into an overflow document.
    pub(crate) sealed: bool,
}

impl Written {
    pub(crate) fn set_time(&self, payload: &mut [u8], time: ClusterTime) {
        for at in self.times_at.into_iter().flatten() {
            payload[at..at + TIME_BYTES].copy_from_slice(&time.to_u64().to_be_bytes());
        }
    }
}

impl Addition<'_> {
    /// Appends the session's documents, as they are after this write.
    pub(crate) fn encode(&self, history: &History, encoder: &mut Encoder<'_>) -> Written {
        let number = history.number().unwrap_or(0).unsigned_abs();
        let mut written = Written::default();
        // Of a number before, or none.
        for chunk in history.overflow..history.overflow_stored {
            encoder.delete_meta(&SessionKey::overflow(self.session, chunk));
        }
        let mut items = Vec::new();
        put_items(&mut items, &history.recent);
        if items.len() > DOCUMENT_ITEMS_BYTES {
            let mut sealed = vec![VERSION];
            sealed.append(&mut items);
            let key = SessionKey::overflow(self.session, history.overflow);
            encoder.put_meta(&key, &sealed);
            written.sealed = true;
        }
        if let Some(image) = self.image {
            let kind = match image.kind {
                ImageKind::Before => 1,
                ImageKind::After => 2,
                ImageKind::Inserted => 3,
            };
            let mut value = vec![VERSION, kind];
            value.extend_from_slice(&[0; TIME_BYTES]);
            put(&mut value, number);
            put_statement(&mut value, self.items.first().map_or(0, |item| item.first));
            value.extend_from_slice(image.document.as_bytes());
            encoder.put_meta(&SessionKey::image(self.session), &value);
            written.times_at[0] = Some(encoder.position() - value.len() + TIME_AT);
        }
        let flags = if history.incomplete { INCOMPLETE } else { 0 };
        let overflow = history.overflow + u32::from(written.sealed);
        let mut value = Vec::with_capacity(64 + items.len());
        value.extend_from_slice(&[VERSION, flags]);
        value.extend_from_slice(&[0; TIME_BYTES]);
        value.extend_from_slice(&self.wall_ms.to_be_bytes());
        put(&mut value, self.term);
        put(&mut value, number);
        put(&mut value, u64::from(overflow));
        value.extend_from_slice(&items);
        put_items(&mut value, self.items);
        encoder.put_meta(&SessionKey::session(self.session), &value);
        written.times_at[1] = Some(encoder.position() - value.len() + TIME_AT);
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::bson::DocWriter;
    use storage::entry::{Entry, Operation};

    fn session() -> SessionId {
        SessionId::new([9; 16])
    }

    fn items() -> Vec<Executed> {
        let id = || DocWriter::new().with("_id", 7).finish();
        let effects = [
            Effect::Inserted,
            Effect::Updated,
            Effect::Deleted,
            Effect::UpdatedWithImage(ImageKind::Before),
            Effect::UpdatedWithImage(ImageKind::After),
            Effect::DeletedWithImage,
            Effect::Upserted(id()),
            Effect::UpsertedWithImage(id()),
        ];
        let statements = [0, -1, 5, i32::MAX, i32::MIN, 77, 1000, 2];
        effects
            .into_iter()
            .zip(statements)
            .map(|(effect, statement)| Executed::one(statement, effect))
            .collect()
    }

    /// The documents of an entry that adds these items, by key.
    fn written(
        history: &History,
        items: &[Executed],
        image: Option<&Image>,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut payload = Vec::new();
        let addition = Addition {
            session: session(),
            items,
            image,
            term: 300,
            wall_ms: -5,
        };
        let written = addition.encode(history, &mut Encoder::new(&mut payload));
        written.set_time(&mut payload, ClusterTime::new(6, 7));
        let entry = Entry::decode(&payload).expect("our own entry");
        entry
            .operations()
            .filter_map(|operation| match operation.expect("our own operation") {
                Operation::PutMeta { key, value } => Some((key.to_vec(), value.to_vec())),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let mut history = History::default();
        history.begin(12345, session()).expect("the first number");
        let image = Image {
            kind: ImageKind::After,
            document: DocWriter::new().with("_id", 1).finish(),
        };
        let documents = written(&history, &items(), Some(&image));
        let [(image_key, image_value), (key, value)] = &documents[..] else {
            panic!("an image and a session document: {documents:?}");
        };
        assert_eq!(SessionKey::parse(key), Some(session()));
        let stored = Stored::decode(value).expect("a session document");
        assert_eq!(stored.number, 12345);
        assert_eq!(stored.recent, items());
        let last = LastWrite {
            time: ClusterTime::new(6, 7),
            term: 300,
            wall_ms: -5,
        };
        assert_eq!(stored.last, last);
        assert_eq!(SessionKey::parse(image_key), Some(session()));
        let stored = StoredImage::decode(image_value).expect("an image");
        assert_eq!((stored.number, stored.statement), (12345, 0));
        assert_eq!(stored.time, ClusterTime::new(6, 7));
        assert_eq!(stored.image.document, image.document);
    }

    #[test]
    fn damage_is_an_error() {
        let mut history = History::default();
        history.begin(1, session()).expect("the first number");
        let documents = written(&history, &items(), None);
        let (_, value) = &documents[0];
        for length in 0..value.len() {
            // Cut between two items it is shorter, not damaged.
            if let Ok(stored) = Stored::decode(&value[..length]) {
                assert!(stored.recent.len() < items().len());
            }
        }
        for at in 0..value.len() {
            let mut damaged = value.clone();
            damaged[at] ^= 0xFF;
            let _ = Stored::decode(&damaged);
            let _ = StoredImage::decode(&damaged);
            let _ = decode_overflow(&damaged);
        }
    }
}
