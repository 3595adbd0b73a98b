//! What scripts call states and messages.

use super::stage::{Message, Refused};
use crate::authority::Outcome;
use crate::migration::donor::{self, Donor};
use crate::migration::recipient::{self, Recipient};
use crate::migration::{Send, ToAuthority, ToDonor, ToRecipient};

pub(super) fn donor_state(donor: Option<&Donor>) -> String {
    let Some(donor) = donor else {
        return "forgotten".to_owned();
    };
    match donor.phase {
        donor::Phase::Copying => "Copying".to_owned(),
        donor::Phase::WritesBlocked => "WritesBlocked".to_owned(),
        donor::Phase::ReadsBlocked => "ReadsBlocked".to_owned(),
        donor::Phase::Committed(_) => "Committed".to_owned(),
        donor::Phase::Aborted => "Aborted".to_owned(),
    }
}

pub(super) fn recipient_state(recipient: Option<&Recipient>) -> String {
    let Some(recipient) = recipient else {
        return "none".to_owned();
    };
    match (recipient.phase, recipient.aligned) {
        (recipient::Phase::Receiving { copied }, None) => format!("Receiving, has {copied}"),
        (recipient::Phase::Receiving { copied }, Some(catalog)) => {
            format!("Receiving, has {copied}, aligned with catalog {catalog}")
        }
        (recipient::Phase::Ready, _) => "Ready".to_owned(),
        (recipient::Phase::Owner, _) => "Owner".to_owned(),
        (recipient::Phase::Aborted, _) => "Aborted".to_owned(),
    }
}

pub(super) fn outcome_text(outcome: Outcome) -> String {
    match outcome {
        Outcome::Committed { version, since } => {
            let (major, minor) = (version.chunk.major, version.chunk.minor);
            format!("committed {major}|{minor} from time {}", since.seconds())
        }
        Outcome::Aborted => "aborted".to_owned(),
    }
}

/// As a script calls it when it arrives.
pub(super) fn name_of(message: &Message) -> &'static str {
    match message {
        Message::Sent(Send::Recipient(ToRecipient::Receive { .. })) => "receive",
        Message::Sent(Send::Recipient(ToRecipient::Finish { .. })) => "finish",
        Message::Sent(Send::Recipient(ToRecipient::Release { .. })) => "release",
        Message::Sent(Send::Donor(ToDonor::Progress { .. })) => "progress",
        Message::Sent(Send::Donor(ToDonor::Ready { .. })) => "ready",
        Message::Sent(Send::Donor(ToDonor::Cannot { .. })) => "cannot",
        Message::Sent(Send::Donor(ToDonor::Released { .. })) => "released",
        Message::Sent(Send::Authority(ToAuthority::Commit { .. })) => "commit",
        Message::Sent(Send::Authority(ToAuthority::Settle { .. })) => "settle",
        Message::Answer(_) => "answer",
    }
}

pub(super) fn message_text(message: &Message) -> String {
    let name = name_of(message);
    match message {
        Message::Sent(Send::Recipient(ToRecipient::Receive { moved, since })) => {
            format!("{name} from {since}, catalog {}", moved.catalog)
        }
        Message::Sent(Send::Recipient(ToRecipient::Finish {
            catalog,
            up_to,
            digest,
            ..
        })) => {
            let documents = digest.documents;
            format!("{name} at {up_to}, {documents} documents, catalog {catalog}")
        }
        Message::Sent(Send::Recipient(ToRecipient::Release { outcome, .. })) => {
            format!("{name}: {}", outcome_text(*outcome))
        }
        Message::Sent(Send::Donor(ToDonor::Progress { copied, .. })) => format!("{name} {copied}"),
        Message::Sent(Send::Donor(ToDonor::Ready { catalog, .. })) => {
            format!("{name}, catalog {catalog}")
        }
        Message::Sent(Send::Authority(ToAuthority::Commit { moved })) => {
            format!("{name}, catalog {}", moved.catalog)
        }
        Message::Sent(
            Send::Donor(ToDonor::Cannot { .. } | ToDonor::Released { .. })
            | Send::Authority(ToAuthority::Settle { .. }),
        ) => name.to_owned(),
        Message::Answer(answer) => authority_says(answer, false),
    }
}

/// What the authority writes, or says without writing anything.
pub(super) fn authority_says(answer: &Result<Outcome, Refused>, is_new: bool) -> String {
    match (answer, is_new) {
        (Ok(outcome), true) => format!("authority: writes {}", outcome_text(*outcome)),
        (Ok(outcome), false) => format!("authority: knows {}", outcome_text(*outcome)),
        (Err(Refused::CatalogChanged { known, now }), _) => {
            format!("authority: never with catalog {known}, it is {now} or later")
        }
        (Err(Refused::Otherwise(why)), _) => format!("authority: refuses, {why}"),
    }
}
