//! Errors as clients see them: MongoDB's codes and their names, in one place.
//!
//! A [`Code`] is MongoDB's number. Named codes have a constant here; all other
//! numbers are *locations*, whose name is `Location` and the number.

use crate::bson::DocBuf;
use std::fmt;

/// A MongoDB error code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(pub i32);

macro_rules! codes {
    ($($constant:ident = $number:literal $name:literal,)*) => {
        impl Code {
            $(pub const $constant: Code = Code($number);)*

            fn known_name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($name),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    INTERNAL_ERROR = 1 "InternalError",
    BAD_VALUE = 2 "BadValue",
    NO_SUCH_KEY = 4 "NoSuchKey",
    GRAPH_CONTAINS_CYCLE = 5 "GraphContainsCycle",
    HOST_UNREACHABLE = 6 "HostUnreachable",
    HOST_NOT_FOUND = 7 "HostNotFound",
    UNKNOWN_ERROR = 8 "UnknownError",
    FAILED_TO_PARSE = 9 "FailedToParse",
    CANNOT_MUTATE_OBJECT = 10 "CannotMutateObject",
    USER_NOT_FOUND = 11 "UserNotFound",
    UNSUPPORTED_FORMAT = 12 "UnsupportedFormat",
    UNAUTHORIZED = 13 "Unauthorized",
    TYPE_MISMATCH = 14 "TypeMismatch",
    OVERFLOW = 15 "Overflow",
    INVALID_LENGTH = 16 "InvalidLength",
    PROTOCOL_ERROR = 17 "ProtocolError",
    AUTHENTICATION_FAILED = 18 "AuthenticationFailed",
    ILLEGAL_OPERATION = 20 "IllegalOperation",
    EMPTY_ARRAY_OPERATION = 21 "EmptyArrayOperation",
    INVALID_BSON = 22 "InvalidBSON",
    ALREADY_INITIALIZED = 23 "AlreadyInitialized",
    LOCK_TIMEOUT = 24 "LockTimeout",
    NAMESPACE_NOT_FOUND = 26 "NamespaceNotFound",
    INDEX_NOT_FOUND = 27 "IndexNotFound",
    PATH_NOT_VIABLE = 28 "PathNotViable",
    NON_EXISTENT_PATH = 29 "NonExistentPath",
    INVALID_PATH = 30 "InvalidPath",
    ROLE_NOT_FOUND = 31 "RoleNotFound",
    CANNOT_BACKFILL_ARRAY = 34 "CannotBackfillArray",
    CONFLICTING_UPDATE_OPERATORS = 40 "ConflictingUpdateOperators",
    CURSOR_NOT_FOUND = 43 "CursorNotFound",
    LOCK_BUSY = 46 "LockBusy",
    NAMESPACE_EXISTS = 48 "NamespaceExists",
    DOLLAR_PREFIXED_FIELD_NAME = 52 "DollarPrefixedFieldName",
    INVALID_ID_FIELD = 53 "InvalidIdField",
    NOT_SINGLE_VALUE_FIELD = 54 "NotSingleValueField",
    INVALID_DB_REF = 55 "InvalidDBRef",
    EMPTY_FIELD_NAME = 56 "EmptyFieldName",
    DOTTED_FIELD_NAME = 57 "DottedFieldName",
    COMMAND_NOT_FOUND = 59 "CommandNotFound",
    SHARD_NOT_FOUND = 70 "ShardNotFound",
    FAILED_TO_SATISFY_READ_PREFERENCE = 133 "FailedToSatisfyReadPreference",
    STALE_EPOCH = 150 "StaleEpoch",
    SHARD_KEY_NOT_FOUND = 61 "ShardKeyNotFound",
    WRITE_CONCERN_FAILED = 64 "WriteConcernFailed",
    MULTIPLE_ERRORS_OCCURRED = 65 "MultipleErrorsOccurred",
    IMMUTABLE_FIELD = 66 "ImmutableField",
    CANNOT_CREATE_INDEX = 67 "CannotCreateIndex",
    INDEX_ALREADY_EXISTS = 68 "IndexAlreadyExists",
    INVALID_OPTIONS = 72 "InvalidOptions",
    INVALID_NAMESPACE = 73 "InvalidNamespace",
    NODE_NOT_FOUND = 74 "NodeNotFound",
    NO_REPLICATION_ENABLED = 76 "NoReplicationEnabled",
    UNKNOWN_REPL_WRITE_CONCERN = 79 "UnknownReplWriteConcern",
    INDEX_OPTIONS_CONFLICT = 85 "IndexOptionsConflict",
    INDEX_KEY_SPECS_CONFLICT = 86 "IndexKeySpecsConflict",
    NETWORK_TIMEOUT = 89 "NetworkTimeout",
    INVALID_REPLICA_SET_CONFIG = 93 "InvalidReplicaSetConfig",
    NOT_YET_INITIALIZED = 94 "NotYetInitialized",
    NOT_SECONDARY = 95 "NotSecondary",
    OPERATION_FAILED = 96 "OperationFailed",
    UNSATISFIABLE_WRITE_CONCERN = 100 "UnsatisfiableWriteConcern",
    NEW_REPLICA_SET_CONFIGURATION_INCOMPATIBLE = 103 "NewReplicaSetConfigurationIncompatible",
    CONFIGURATION_IN_PROGRESS = 109 "ConfigurationInProgress",
    MAX_TIME_MS_EXPIRED = 50 "MaxTimeMSExpired",
    CANNOT_INDEX_PARALLEL_ARRAYS = 171 "CannotIndexParallelArrays",
    INVALID_PIPELINE_OPERATOR = 168 "InvalidPipelineOperator",
    CURSOR_IN_USE = 12051 "CursorInUse",
    SHUTDOWN_IN_PROGRESS = 91 "ShutdownInProgress",
    NOT_EXACT_VALUE_FIELD = 111 "NotExactValueField",
    WRITE_CONFLICT = 112 "WriteConflict",
    COMMAND_NOT_SUPPORTED = 115 "CommandNotSupported",
    DOCUMENT_VALIDATION_FAILURE = 121 "DocumentValidationFailure",
    COMMAND_FAILED = 125 "CommandFailed",
    COMMAND_NOT_SUPPORTED_ON_VIEW = 166 "CommandNotSupportedOnView",
    OPTION_NOT_SUPPORTED_ON_VIEW = 167 "OptionNotSupportedOnView",
    INVALID_INDEX_SPECIFICATION_OPTION = 197 "InvalidIndexSpecificationOption",
    QUERY_PLAN_KILLED = 175 "QueryPlanKilled",
    AMBIGUOUS_INDEX_KEY_PATTERN = 181 "AmbiguousIndexKeyPattern",
    NO_SHARDING_ENABLED = 193 "NoShardingEnabled",
    PRIMARY_STEPPED_DOWN = 189 "PrimarySteppedDown",
    CLUSTER_TIME_FAILS_RATE_LIMITER = 205 "ClusterTimeFailsRateLimiter",
    EXCEEDED_TIME_LIMIT = 262 "ExceededTimeLimit",
    INTERRUPTED_DUE_TO_REPL_STATE_CHANGE = 11602 "InterruptedDueToReplStateChange",
    NOT_PRIMARY_NO_SECONDARY_OK = 13435 "NotPrimaryNoSecondaryOk",
    NOT_PRIMARY_OR_SECONDARY = 13436 "NotPrimaryOrSecondary",
    SHARDING_STATE_NOT_INITIALIZED = 203 "ShardingStateNotInitialized",
    QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED = 292 "QueryExceededMemoryLimitNoDiskUseAllowed",
    EXCEEDED_MEMORY_LIMIT = 146 "ExceededMemoryLimit",
    INVALID_UUID = 207 "InvalidUUID",
    INTERRUPTED = 11601 "Interrupted",
    INTERRUPTED_AT_SHUTDOWN = 11600 "InterruptedAtShutdown",
    UNSATISFIABLE_COMMIT_QUORUM = 278 "UnsatisfiableCommitQuorum",
    CLIENT_DISCONNECT = 279 "ClientDisconnect",
    CONVERSION_FAILURE = 241 "ConversionFailure",
    NO_QUERY_EXECUTION_PLANS = 291 "NoQueryExecutionPlans",
    UNSUPPORTED_OP_QUERY_COMMAND = 352 "UnsupportedOpQueryCommand",
    STALE_CLUSTER_TIME = 209 "StaleClusterTime",
    SNAPSHOT_TOO_OLD = 239 "SnapshotTooOld",
    SNAPSHOT_UNAVAILABLE = 246 "SnapshotUnavailable",
    STALE_CHUNK_HISTORY = 250 "StaleChunkHistory",
    NO_SUCH_TRANSACTION = 251 "NoSuchTransaction",
    OPERATION_NOT_SUPPORTED_IN_TRANSACTION = 263 "OperationNotSupportedInTransaction",
    TRANSACTION_TOO_OLD = 225 "TransactionTooOld",
    INCOMPLETE_TRANSACTION_HISTORY = 217 "IncompleteTransactionHistory",
    TOO_MANY_LOGICAL_SESSIONS = 261 "TooManyLogicalSessions",
    NOT_A_RETRYABLE_WRITE_COMMAND = 50768 "NotARetryableWriteCommand",
    DURATION_OVERFLOW = 159 "DurationOverflow",
    MAX_STALENESS_OUT_OF_RANGE = 160 "MaxStalenessOutOfRange",
    DUPLICATE_KEY = 11000 "DuplicateKey",
    BSON_OBJECT_TOO_LARGE = 10334 "BSONObjectTooLarge",
    MERGE_STAGE_NO_MATCHING_DOCUMENT = 13113 "MergeStageNoMatchingDocument",
    STALE_CONFIG = 13388 "StaleConfig",
    WOULD_CHANGE_OWNING_SHARD = 283 "WouldChangeOwningShard",
    STALE_DB_VERSION = 249 "StaleDbVersion",
    NOT_WRITABLE_PRIMARY = 10107 "NotWritablePrimary",
    INDEX_BUILD_ABORTED = 276 "IndexBuildAborted",
    INDEX_BUILD_ALREADY_IN_PROGRESS = 343 "IndexBuildAlreadyInProgress",
    CONFLICTING_OPERATION_IN_PROGRESS = 117 "ConflictingOperationInProgress",
    API_VERSION_ERROR = 322 "APIVersionError",
    API_STRICT_ERROR = 323 "APIStrictError",
    KEY_NOT_FOUND = 211 "KeyNotFound",
    CLIENT_METADATA_CANNOT_BE_MUTATED = 186 "ClientMetadataCannotBeMutated",
    QUERY_FEATURE_NOT_ALLOWED = 224 "QueryFeatureNotAllowed",
    MECHANISM_UNAVAILABLE = 334 "MechanismUnavailable",
    COLLECTION_UUID_MISMATCH = 361 "CollectionUUIDMismatch",
    DATABASE_DIFFER_CASE = 13297 "DatabaseDifferCase",
    NO_MATCHING_DOCUMENT = 47 "NoMatchingDocument",
    CAPPED_POSITION_LOST = 136 "CappedPositionLost",
    CURSOR_KILLED = 237 "CursorKilled",
    INVALID_RESUME_TOKEN = 260 "InvalidResumeToken",
    CHANGE_STREAM_FATAL_ERROR = 280 "ChangeStreamFatalError",
    CHANGE_STREAM_HISTORY_LOST = 286 "ChangeStreamHistoryLost",
    OPLOG_QUERY_MIN_TS_MISSING = 326 "OplogQueryMinTsMissing",
    ZONE_STILL_IN_USE = 163 "ZoneStillInUse",
    ZONE_NOT_FOUND = 177 "ZoneNotFound",
    RANGE_OVERLAP_CONFLICT = 178 "RangeOverlapConflict",
    NAMESPACE_NOT_SHARDED = 118 "NamespaceNotSharded",
    CANNOT_SPLIT = 87 "CannotSplit",
    MANUAL_INTERVENTION_REQUIRED = 51 "ManualInterventionRequired",
    OUT_OF_DISK_SPACE = 14031 "OutOfDiskSpace",
}

impl Code {
    /// MongoDB's `codeName`.
    pub fn name(self) -> String {
        match self.known_name() {
            Some(name) => name.to_owned(),
            None => format!("Location{}", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

/// What a command answers instead of a result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub code: Code,
    pub message: String,
    /// Further fields of the reply, such as `keyPattern` and `keyValue`.
    pub details: Option<Box<DocBuf>>,
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: None,
        }
    }

    /// An error that MongoDB knows by number only.
    pub fn location(number: i32, message: impl Into<String>) -> Self {
        Self::new(Code(number), message)
    }

    pub fn bad_value(message: impl Into<String>) -> Self {
        Self::new(Code::BAD_VALUE, message)
    }

    pub fn with_details(mut self, details: DocBuf) -> Self {
        self.details = Some(Box::new(details));
        self
    }
}
