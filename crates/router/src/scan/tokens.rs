//! Scans as clients hold them: a token after each batch, from which any router goes on.

use super::{ElasticScan, ScanCommand};
use crate::Router;
use crate::failure::Failure;
use cluster::cache::Placement;
use cluster::scan::{Scan, ScanToken, TokenError};
use model::bson::{Doc, DocWriter, Element, ValueRef};
use model::error::{Code, Error};
use model::range::RangeSet;
use std::sync::Arc;

/// The field of a resume token.
const TOKEN: &str = "terndbScan";

/// Whether a `find` goes on from a token of ours.
pub(crate) fn has_token(body: Doc<'_>) -> bool {
    let token = body.get_doc("$_resumeAfter").or(body.get_doc("$_startAt"));
    token.is_some_and(|token| token.get(TOKEN).is_some())
}

/// What a `find` says about tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenFields<'a> {
    pub(crate) requested: bool,
    pub(crate) after: Option<Doc<'a>>,
}

impl<'a> TokenFields<'a> {
    /// None if a shard refuses them: it knows the words.
    pub(crate) fn read(body: Doc<'a>) -> Option<TokenFields<'a>> {
        let requested = match body.get("$_requestResumeToken") {
            None => false,
            Some(ValueRef::Boolean(requested)) => requested,
            Some(_) => return None,
        };
        let mut after = None;
        for name in ["$_resumeAfter", "$_startAt"] {
            match body.get(name) {
                None => {}
                // An empty document stands for none.
                Some(ValueRef::Document(token)) if token.is_empty() => {}
                Some(ValueRef::Document(token)) if requested && after.is_none() => {
                    after = Some(token);
                }
                Some(_) => return None,
            }
        }
        Some(TokenFields { requested, after })
    }
}

/// Fields of a `find` that decide which documents come, and in which order. A projection does not.
const DECIDING: [&str; 7] = ["filter", "sort", "hint", "min", "max", "let", "collation"];

/// A fingerprint of a `find`, the same on every router: places mean nothing to another one.
pub(crate) fn query_of(body: Doc<'_>) -> u64 {
    // FNV-1a, of 64 bits.
    let add = |hash: u64, bytes: &[u8]| {
        bytes.iter().fold(hash, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
        })
    };
    let mut hash = add(0xCBF2_9CE4_8422_2325, b"find");
    for name in DECIDING {
        let given = body.element(name);
        // An empty document says as much as none.
        let is_empty = |element: &Element<'_>| matches!(element.value(), ValueRef::Document(document) if document.is_empty());
        if let Some(element) = given.filter(|element| !is_empty(element)) {
            hash = add(hash, name.as_bytes());
            hash = add(hash, &[0, element.kind() as u8]);
            hash = add(hash, element.value_bytes());
        }
    }
    hash
}

/// ⚑ What a token stands in is gone: that must not look like its end.
pub(crate) fn gone() -> Failure {
    let message = "the collection was dropped";
    Failure::Error(Error::new(Code::QUERY_PLAN_KILLED, message))
}

impl ElasticScan {
    /// Goes on where a token stands, on whichever router it was given out.
    pub(crate) async fn resume(
        router: &Arc<Router>,
        command: ScanCommand,
        token: Doc<'_>,
        query: u64,
        wanted: RangeSet,
    ) -> Result<ElasticScan, Failure> {
        let refuse = |error: TokenError| {
            let code = match error {
                TokenError::Damaged | TokenError::Version(_) => Code::BAD_VALUE,
                TokenError::OtherIncarnation => Code::QUERY_PLAN_KILLED,
                TokenError::TooOld => Code::STALE_CHUNK_HISTORY,
                TokenError::OtherQuery => Code::INVALID_RESUME_TOKEN,
            };
            Failure::Error(Error::new(code, error.to_string()))
        };
        let mut fields = token.iter().map(|field| (field.key(), field.value()));
        let (Some((TOKEN, ValueRef::Binary { bytes, .. })), None) = (fields.next(), fields.next())
        else {
            return Err(refuse(TokenError::Damaged));
        };
        let token = ScanToken::decode(bytes).map_err(refuse)?;
        token.check_query(query).map_err(refuse)?;
        let not_before = token.not_before;
        // ⚑ Shards refuse to read after a time that nobody has told them, and this router may be new.
        router.clock.raise_from_client(not_before)?;
        let recent = router.routing.recent_placement(&command.namespace);
        let mut placement = recent.await?;
        // What is known here may be older than what the scan began with.
        if !matches!(&placement, Placement::Sharded(table) if token.is_told_by(table)) {
            router.routing.mark_stale(&command.namespace);
            placement = router.routing.placement(&command.namespace, None).await?;
        }
        let Placement::Sharded(table) = placement else {
            return Err(refuse(TokenError::OtherIncarnation));
        };
        let scan = Scan::resume(token, Arc::new(table), wanted.clone()).map_err(refuse)?;
        let mut resumed = Self::with_scan(router, command, scan, wanted);
        resumed.is_resumed = true;
        resumed.begun = true;
        resumed.not_before = not_before;
        Ok(resumed)
    }

    /// Where the batches stand that were delivered, the end too.
    pub(super) fn append_token(&self, cursor: &mut DocWriter) {
        if let Some(token) = self.scan.token(self.not_before) {
            let bytes = token.encode();
            let bytes = ValueRef::Binary {
                subtype: 0,
                bytes: &bytes,
            };
            cursor
                .begin_document("postBatchResumeToken")
                .append(TOKEN, bytes)
                .end();
        }
    }
}
