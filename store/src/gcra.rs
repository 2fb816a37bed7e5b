//! GCRA, the algorithm of all rate limits, in memory and in Redis; and the limits of an address.

use std::time::Duration;

/// The parameters of GCRA. Times are durations since the start of the limiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gcra {
    /// The time between two events at the steady rate.
    pub(crate) interval: Duration,
    /// Burst size, as time at the steady rate.
    pub(crate) burst: Duration,
}

/// A limit of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressLimit {
    /// Connections, whatever their token.
    Connections,
    /// Connections with a token that no agent has.
    UnknownTokens,
}

/// The error of an address that has reached a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRefusal {
    /// The limit.
    pub limit: AddressLimit,
    /// The time until the next connection is admitted.
    pub wait: Duration,
}

impl Gcra {
    /// Admits `limit` events in each `period`, all of them at once or evenly.
    pub(crate) fn new(limit: u32, period: Duration) -> Self {
        Self { interval: (period / limit.max(1)).max(Duration::from_nanos(1)), burst: period }
    }

    /// Returns the new theoretical arrival time, or how long to wait before the event is admitted.
    pub(crate) fn admit(self, arrival: Duration, now: Duration) -> Result<Duration, Duration> {
        let arrival = arrival.max(now) + self.interval;
        match (arrival - now).checked_sub(self.burst) {
            None | Some(Duration::ZERO) => Ok(arrival),
            Some(wait) => Err(wait),
        }
    }
}

impl AddressLimit {
    /// Returns the last part of the key in Redis.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::UnknownTokens => "tokens",
        }
    }

    /// Returns the limits that a connection counts for.
    pub(crate) fn of(known: bool) -> &'static [Self] {
        if known { &[Self::Connections] } else { &[Self::Connections, Self::UnknownTokens] }
    }
}
