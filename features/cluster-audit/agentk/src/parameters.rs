//! The parameters of a request.

use std::time::SystemTime;

use cluster_audit::{Cursor, EventFilter, InvalidFilter, InvalidPosition, Position, RingView};
use proto::{audit::MAX_EVENTS, percent};
use settings::rfc3339;

/// The events of a response without a limit in its request.
const DEFAULT_EVENTS: usize = 1000;
/// The longest query, in bytes.
const MAX_QUERY: usize = 4096;

/// The parameters of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) filter: EventFilter,
    /// The first time.
    since: Option<SystemTime>,
    /// The end of an earlier response.
    position: Option<Position>,
    /// The most events, unless the response follows.
    pub(super) limit: usize,
    /// The response continues with later events.
    pub(super) follows: bool,
}

/// A parameter that is unknown or wrong.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParameterError {
    #[error("the query is longer than {MAX_QUERY} bytes")]
    TooLong,
    #[error("the value of {0} is no UTF-8")]
    NoText(String),
    #[error("{0}={1}: write a time like 2026-01-31T12:00:00Z")]
    Time(&'static str, String),
    #[error("limit={0}: write a number from 1 to {MAX_EVENTS}")]
    Limit(String),
    #[error("follow={0}: write true or false")]
    Follow(String),
    #[error("resource={0}: {1}")]
    Resource(String, InvalidFilter),
    #[error("position={0}: {1}")]
    Position(String, InvalidPosition),
    #[error(
        "there is no parameter {0:?}; the parameters are since, until, user, verb, resource, namespace, position, limit and follow"
    )]
    Unknown(String),
}

impl Parameters {
    /// Parses the query of a request.
    pub(super) fn parse(text: &str) -> Result<Self, ParameterError> {
        if text.len() > MAX_QUERY {
            return Err(ParameterError::TooLong);
        }
        let mut parameters = Self {
            filter: EventFilter::default(),
            since: None,
            position: None,
            limit: DEFAULT_EVENTS,
            follows: false,
        };
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent::decode_value(value).map_err(|_| ParameterError::NoText(short(key)))?;
            if !value.is_empty() {
                parameters.set(key, &value)?;
            }
        }
        Ok(parameters)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ParameterError> {
        let text = || Some(value.to_owned());
        match key {
            "since" => {
                let time = parse_time("since", value)?;
                (self.since, self.filter.since) = (Some(time), Some(format_time(time)));
            }
            "until" => self.filter.until = Some(format_time(parse_time("until", value)?)),
            "user" => self.filter.user = text(),
            "verb" => self.filter.verb = text(),
            "namespace" => self.filter.namespace = text(),
            "resource" => {
                let resource =
                    value.parse().map_err(|error| ParameterError::Resource(short(value), error))?;
                self.filter.resource = Some(resource);
            }
            "position" => {
                let position =
                    value.parse().map_err(|error| ParameterError::Position(short(value), error))?;
                self.position = Some(position);
            }
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=MAX_EVENTS).contains(limit));
                self.limit = limit.ok_or_else(|| ParameterError::Limit(short(value)))?;
            }
            "follow" => match value {
                "true" | "1" => self.follows = true,
                "false" | "0" => self.follows = false,
                _ => return Err(ParameterError::Follow(short(value))),
            },
            _ => return Err(ParameterError::Unknown(short(key))),
        }
        Ok(())
    }

    /// Returns a cursor where the response begins. Without a time and a position, a response that follows begins with the next event, and
    /// another one with the oldest.
    pub(super) fn cursor(&self, ring: RingView) -> Cursor {
        let begin = match (self.position, self.since) {
            (Some(position), _) => position,
            (None, Some(since)) => return Cursor::since(ring, since),
            (None, None) if self.follows => ring.end(),
            (None, None) => ring.start(),
        };
        Cursor::new(ring, begin)
    }
}

fn parse_time(key: &'static str, text: &str) -> Result<SystemTime, ParameterError> {
    // The `+` of an offset that was not encoded.
    rfc3339::parse(&text.replace(' ', "+")).ok_or_else(|| ParameterError::Time(key, short(text)))
}

/// Returns a time in the form that events have.
fn format_time(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(time).to_string()
}

fn short(text: &str) -> String {
    text.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query = "since=2026-01-31T12%3A00%3A00Z&until=2026-01-31T13:00:00.5Z&user=gitlab%3Aci_job%3A3&verb=delete\
                     &resource=pods/exec&namespace=shop&position=000000ff.7&limit=7&follow=true&user=";
        let parameters = Parameters::parse(query).unwrap();
        let text = |text: &str| Some(text.to_owned());
        let filter = EventFilter {
            since: text("2026-01-31T12:00:00.000000Z"),
            until: text("2026-01-31T13:00:00.500000Z"),
            user: text("gitlab:ci_job:3"),
            verb: text("delete"),
            resource: Some("pods/exec".parse().unwrap()),
            namespace: text("shop"),
        };
        assert_eq!(parameters.filter, filter);
        assert_eq!((parameters.limit, parameters.follows), (7, true));
        assert_eq!(parameters.position, Some("000000ff.7".parse().unwrap()));
        assert_eq!(Parameters::parse("").unwrap().limit, DEFAULT_EVENTS);
        for since in ["2026-01-31T14:00:00%2B02:00", "2026-01-31T14:00:00+02:00"] {
            let parameters = Parameters::parse(&format!("since={since}")).unwrap();
            assert_eq!(parameters.filter.since, text("2026-01-31T12:00:00.000000Z"), "{since}");
        }
    }

    #[test]
    fn wrong_parameter_is_an_error_that_names_it() {
        for (query, expected) in [
            ("who=me", "there is no parameter \"who\""),
            ("since=yesterday", "since=yesterday: write a time"),
            ("until=1h", "until=1h: write a time"),
            ("limit=0", "from 1 to 10000"),
            ("limit=10001", "from 1 to 10000"),
            ("follow=maybe", "write true or false"),
            ("resource=Pods", "write a resource like pods"),
            ("position=1", "position=1: a position is one of an earlier response"),
            ("user=%ff", "the value of user is no UTF-8"),
        ] {
            let error = Parameters::parse(query).unwrap_err().to_string();
            assert!(error.contains(expected), "{query}: {error}");
        }
        assert!(Parameters::parse(&"x".repeat(MAX_QUERY + 1)).is_err());
    }
}
