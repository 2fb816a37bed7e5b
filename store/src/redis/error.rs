//! The reasons why a replica cannot use Redis, each in one line without secrets.

use std::time::Duration;

use redis::{ErrorKind, RedisError};

use super::{
    MAX_DISABLED,
    settings::{RedisAddress, RedisSettingsError},
};

/// The reason why a replica cannot use Redis.
#[derive(Debug, thiserror::Error)]
pub enum RedisStoreError {
    /// The operator has to mend the settings.
    #[error(transparent)]
    Settings(#[from] RedisSettingsError),
    /// Redis refuses the credentials.
    #[error("Redis refuses the user name or password of kas (redis.username, redis.password_file): {0}")]
    Authentication(RedisError),
    /// Redis, or the network on the way to it, refuses connections.
    #[error("Redis refuses connections: {0}")]
    ConnectionRefused(RedisError),
    /// A command has no response within `redis.response_timeout`.
    #[error("Redis did not answer in time")]
    ResponseTimeout,
    /// There is no connection within `redis.dial_timeout`.
    #[error("no connection within {} s", .0.as_secs_f64())]
    DialTimeout(Duration),
    /// Redis refuses a command, or the connection failed.
    #[error("{0}")]
    Command(RedisError),
    /// No Sentinel names a server.
    #[error("the Sentinels name no server: {0}")]
    Sentinels(Box<Self>),
    /// The settings name no node of the Cluster.
    #[error("the Cluster has no nodes")]
    NoNodes,
    /// A node of the Cluster accepts no connection.
    #[error("{0} does not answer")]
    NodeTimeout(RedisAddress),
    /// Redis ended the connection for events.
    #[error("Redis closed the connection")]
    Closed,
    /// The connection for events delivers none.
    #[error("Redis does not deliver events")]
    NoEvents,
    /// The command of a request failed.
    #[error("Redis did not answer a lookup")]
    LookupFailed,
    /// Redis was restarted, or has evicted keys.
    #[error("Redis has lost records of this replica")]
    LostRecords,
    /// A script returned less than it must.
    #[error("Redis returned no events")]
    EmptyEvents,
    /// Replicas of another fleet use the same prefix.
    #[error(
        "this Redis is used by another fleet, {other:?} at {url}, with the same prefix {prefix:?}; this one is {own:?}: give each \
         fleet its own redis.key_prefix, and all replicas of one fleet the same redis.fleet"
    )]
    FleetConflict {
        /// The other fleet.
        other: String,
        /// The URL of one of its replicas.
        url: String,
        /// The prefix of the keys.
        prefix: String,
        /// The fleet of this replica.
        own: String,
    },
    /// The sync task has panicked.
    #[error("kas stopped using Redis because of a bug: restart it")]
    Defect,
}

/// The reason why a check of a Redis failed.
#[derive(Debug, thiserror::Error)]
pub enum RedisCheckError {
    /// Redis cannot be used.
    #[error(transparent)]
    Redis(#[from] RedisStoreError),
    /// Its version is too old.
    #[error("it is Redis {0}, and kas requires 6.2 or newer")]
    OldVersion(String),
    /// kas may not run all of its commands.
    #[error("{count} of them fail, the first is {first}")]
    Commands {
        /// The number of commands that fail.
        count: usize,
        /// The error of the first one.
        first: String,
    },
    /// Redis ended the connection for events.
    #[error("Redis closed the connection for events")]
    EventsClosed,
    /// An event does not come back.
    #[error(
        "kas does not receive the events that it publishes: does a proxy send commands and subscriptions to different servers?"
    )]
    NoEvents,
}

/// The reason why the record of the kill switch was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// Redis cannot be used.
    #[error(transparent)]
    Redis(#[from] RedisStoreError),
    /// The rules are too long.
    #[error("the rules are longer than {MAX_DISABLED} bytes: lift some first")]
    TooLong,
    /// Another operator was faster.
    #[error("somebody else has changed the rules at the same time: try again")]
    Conflict,
}

impl From<RedisError> for RedisStoreError {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::AuthenticationFailed => Self::Authentication(error),
            _ if error.is_timeout() => Self::ResponseTimeout,
            _ if error.is_connection_refusal() => Self::ConnectionRefused(error),
            _ => Self::Command(error),
        }
    }
}
