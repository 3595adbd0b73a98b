//! What can keep the verifier from telling, and what to do about it.
//!
//! Every text is one sentence for whoever runs the verifier: what failed, on which side, and the
//! next step. Credentials never appear in it.

use crate::merge::Side;
use mongodb::error::{CommandError, Error as DriverError, ErrorKind};

const UNAUTHORIZED: i32 = 13;
const AUTHENTICATION_FAILED: i32 = 18;

/// A node that stepped down, stopped or was cut off, and cursors that went with it; and a capped
/// collection that overtook who reads it.
const TRANSIENT_CODES: [i32; 16] = [
    6, 7, 43, 89, 91, 133, 134, 136, 175, 189, 237, 262, 9001, 10107, 11600, 13435,
];

#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// What was asked for cannot be done.
    #[error("{0}")]
    Settings(String),

    #[error("the {side} at {address} cannot be reached ({detail}): {}", how_to_reach(.detail))]
    Unreachable {
        side: Side,
        address: String,
        detail: String,
    },

    /// A side that was there is out of reach; the run is kept.
    #[error("{0}; start again with the same options to go on")]
    Interrupted(Box<VerifyError>),

    #[error(
        "the {side} at {address} refused the credentials ({detail}): check user, password and authSource in its URI"
    )]
    Credentials {
        side: Side,
        address: String,
        detail: String,
    },

    #[error(
        "the user on the {side} at {address} may not {action} ({detail}): grant it the role readAnyDatabase, or name with --include only what it may read"
    )]
    Privilege {
        side: Side,
        address: String,
        action: String,
        detail: String,
    },

    /// The place where the run is kept does not work.
    #[error("the run's state in {place} cannot be used: {detail}")]
    State { place: String, detail: String },

    /// Somebody asked for it; the run can go on later.
    #[error("stopped before the end: start again with the same options to go on where it was")]
    Stopped,

    #[error(
        "the {side} at {address} cannot be verified while it is written: {detail}; or stop all writes to both sides and say so with --writes-off"
    )]
    NoChanges {
        side: Side,
        address: String,
        detail: String,
    },

    /// What was seen of it may never have been.
    #[error(
        "the {side} at {address} is not what it was when this run began: {detail}; start again with the same options to begin anew"
    )]
    WentBack {
        side: Side,
        address: String,
        detail: String,
    },

    #[error("the {side} at {address} failed to {action}: {detail}")]
    Server {
        side: Side,
        address: String,
        action: String,
        detail: String,
        /// Whether the same request may succeed on another try.
        transient: bool,
    },

    #[error(
        "the {side} at {address} sent bytes that are not a valid reply, to the request to {action}: is it a MongoDB-compatible server?"
    )]
    Malformed {
        side: Side,
        address: String,
        action: String,
    },
}

impl VerifyError {
    pub fn settings(text: impl Into<String>) -> VerifyError {
        VerifyError::Settings(text.into())
    }

    /// Puts a driver's error into words.
    pub fn of_driver(side: Side, address: &str, action: &str, error: &DriverError) -> VerifyError {
        let address = address.to_owned();
        let action = action.to_owned();
        let detail = detail(error);
        match error.kind.as_ref() {
            ErrorKind::Authentication { .. } => VerifyError::Credentials {
                side,
                address,
                detail,
            },
            ErrorKind::ServerSelection { .. } | ErrorKind::DnsResolve { .. } => {
                VerifyError::Unreachable {
                    side,
                    address,
                    detail,
                }
            }
            // Nobody said who asks.
            ErrorKind::Command(command)
                if command.code == UNAUTHORIZED
                    && command.message.contains("requires authentication") =>
            {
                VerifyError::Credentials {
                    side,
                    address,
                    detail,
                }
            }
            ErrorKind::Command(command) if command.code == UNAUTHORIZED => VerifyError::Privilege {
                side,
                address,
                action,
                detail,
            },
            ErrorKind::Command(command) if command.code == AUTHENTICATION_FAILED => {
                VerifyError::Credentials {
                    side,
                    address,
                    detail,
                }
            }
            ErrorKind::InvalidArgument { .. } | ErrorKind::InvalidTlsConfig { .. } => {
                VerifyError::Settings(format!(
                    "the URI of the {side} is not valid: {detail}; it has the form mongodb://user:password@host:port/?option=value"
                ))
            }
            ErrorKind::Command(command) => {
                let transient = TRANSIENT_CODES.contains(&command.code);
                VerifyError::Server {
                    side,
                    address,
                    action,
                    detail,
                    transient,
                }
            }
            ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } => VerifyError::Server {
                side,
                address,
                action,
                detail,
                transient: true,
            },
            // Other kinds, which the driver may add to: a request that failed.
            _ => VerifyError::Server {
                side,
                address,
                action,
                detail,
                transient: false,
            },
        }
    }

    /// Puts a driver's error about the place where a run is kept into words.
    pub fn of_meta(place: &str, error: &DriverError) -> VerifyError {
        let detail = detail(error);
        let unauthorized = |error: &CommandError| error.code == UNAUTHORIZED;
        let advice = match error.kind.as_ref() {
            ErrorKind::Authentication { .. } => {
                "check user, password and authSource in the URI of --meta"
            }
            ErrorKind::Command(error)
                if unauthorized(error) && error.message.contains("requires authentication") =>
            {
                "give user and password in the URI of --meta"
            }
            ErrorKind::Command(error) if unauthorized(error) => {
                "grant its user the role readWrite on that database"
            }
            ErrorKind::ServerSelection { .. } | ErrorKind::DnsResolve { .. } => {
                how_to_reach(&detail)
            }
            ErrorKind::InvalidArgument { .. } | ErrorKind::InvalidTlsConfig { .. } => {
                "the URI of --meta has the form mongodb://user:password@host:port/?option=value"
            }
            // Other kinds, which the driver may add to.
            _ => "start again with the same options to go on when it works",
        };
        VerifyError::State {
            place: place.to_owned(),
            detail: format!("{detail}: {advice}"),
        }
    }

    /// Whether the same request may succeed on another try.
    pub fn is_transient(&self) -> bool {
        match self {
            VerifyError::Server { transient, .. } => *transient,
            VerifyError::Unreachable { .. } => true,
            VerifyError::Settings(_)
            | VerifyError::State { .. }
            | VerifyError::Stopped
            | VerifyError::Interrupted(_)
            | VerifyError::NoChanges { .. }
            | VerifyError::WentBack { .. }
            | VerifyError::Credentials { .. }
            | VerifyError::Privilege { .. }
            | VerifyError::Malformed { .. } => false,
        }
    }
}

/// What to do about a server that does not answer.
fn how_to_reach(detail: &str) -> &'static str {
    if detail.contains("certificate") {
        "name the file of the authority that signed it with tlsCAFile in its URI, and the host as the certificate names it"
    } else if detail.contains("suitable for criteria") {
        "no member that is up is what --read-preference or the URI asks for: name another preference, or start such a member"
    } else if detail.contains("unexpected end of file") {
        "if the server requires TLS, add tls=true to its URI"
    } else {
        "check the address, that the server runs, and that this machine may connect to it"
    }
}

/// The part of a driver's error that says why, on one line.
fn detail(error: &DriverError) -> String {
    let text = match error.kind.as_ref() {
        ErrorKind::Command(command) => {
            // Behind it the whole command follows.
            let message = command.message.split(" to execute command {").next();
            let message = message.unwrap_or(&command.message);
            format!("{}, {message}", command.code_name)
        }
        ErrorKind::ServerSelection { message, .. } => selection_detail(message),
        ErrorKind::Authentication { message, .. } => message.clone(),
        ErrorKind::InvalidArgument { message, .. } => message.clone(),
        _ => error.kind.to_string(),
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Of the driver's long list of what it knows about each server, the first cause.
fn selection_detail(message: &str) -> String {
    let Some((_, cause)) = message.split_once("Error: ") else {
        let known = message.find(" Topology:").unwrap_or(message.len());
        return message[..known].trim_end_matches('.').to_owned();
    };
    let cause = cause.strip_prefix("Kind: ").unwrap_or(cause);
    let end = cause.find(", labels:").or_else(|| cause.find([']', '}']));
    cause[..end.unwrap_or(cause.len())].trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_fits_the_cause() {
        let check = |detail: &str, expected: &str| {
            assert!(how_to_reach(detail).contains(expected), "{detail}");
        };
        // As the driver told them, of a server with a certificate of its own.
        check(
            "I/O error: invalid peer certificate: UnknownIssuer",
            "tlsCAFile",
        );
        check("I/O error: unexpected end of file", "tls=true");
        check("I/O error: Connection refused (os error 111)", "runs");
        check(
            "Server selection timeout: None of the available servers suitable for criteria ReadPreference(Secondary { options: None })",
            "--read-preference",
        );
    }

    #[test]
    fn only_the_cause_is_shown() {
        let check = |message: &str, expected: &str| {
            assert_eq!(selection_detail(message), expected, "{message}");
        };
        check(
            "Server selection timeout: No available servers. Topology: { Type: Unknown, Servers: [ { Address: a:1, Type: Unknown, Error: Kind: I/O error: Connection refused (os error 111), labels: {\"x\"}, source: None } ] }",
            "I/O error: Connection refused (os error 111)",
        );
        check("Error: something else }, more", "something else");
        check(
            "Server selection timeout: None suitable. Topology: { Type: Unknown }",
            "Server selection timeout: None suitable",
        );
        check("no cause", "no cause");
    }
}
