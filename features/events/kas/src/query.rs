//! The query of a reader of events.

use std::{str::FromStr, time::SystemTime};

use proto::{
    events::{EventKind, Severity},
    percent,
};
use settings::rfc3339;
use store::EventPosition;

use super::EventFilter;

/// The most events of one list, and those without `limit`.
const LIMIT: (usize, usize) = (500, 100);
/// The longest query, in bytes.
const MAX_LENGTH: usize = 8192;
/// The most values of one parameter.
const MAX_VALUES: usize = 100;

/// The parameters of a reader of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventQuery {
    /// The events that are selected.
    pub(crate) filter: EventFilter,
    /// The events after this position are wanted.
    pub(crate) after: Option<EventPosition>,
    /// The position is that of a time: whoever asks for it has read none of the events before.
    pub(crate) is_time: bool,
    /// The most events of a list.
    pub(crate) limit: usize,
    /// The reader follows.
    pub(crate) watch: bool,
}

/// The error of an invalid query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventQueryError {
    /// The query is too long.
    #[error("the query is longer than {MAX_LENGTH} bytes")]
    TooLong,
    /// There is no such parameter.
    #[error(
        "{0:?} is not a parameter: the parameters are after, since, limit, agent, kind, project, severity and watch"
    )]
    Unknown(String),
    /// The parameter, its value, and what it has to be.
    #[error("{0}: {1:?} is not {2}")]
    Value(&'static str, String, String),
    /// The parameter has more than one value.
    #[error("{0} is given twice")]
    Twice(&'static str),
    /// The parameter has too many values.
    #[error("{0} has more than {MAX_VALUES} values")]
    TooMany(&'static str),
    /// Both parameters say where to begin.
    #[error("after and since are both given: use one of them")]
    Both,
}

impl EventQuery {
    /// Continues after the value of the header `Last-Event-ID`.
    ///
    /// # Errors
    ///
    /// The value is no position.
    pub(crate) fn resume(&mut self, last: &[u8]) -> Result<(), EventQueryError> {
        let text = String::from_utf8_lossy(last);
        if !text.is_empty() {
            (self.after, self.is_time) = (Some(parse("Last-Event-ID", &text)?), false);
        }
        Ok(())
    }
}

impl FromStr for EventQuery {
    type Err = EventQueryError;

    fn from_str(text: &str) -> Result<Self, EventQueryError> {
        if text.len() > MAX_LENGTH {
            return Err(EventQueryError::TooLong);
        }
        let mut filter = EventFilter::default();
        let (mut after, mut since, mut limit, mut severity, mut watch) = (None, None, None, None, None);
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value =
                percent::decode_value(value).map_err(|_| bad("query", value, "UTF-8, percent-encoded"))?;
            match key {
                "after" | "since" | "limit" | "agent" | "project" | "kind" | "severity"
                    if value.is_empty() => {}
                "after" => set_once("after", &mut after, parse("after", &value)?)?,
                "since" => {
                    let what = "a time of RFC 3339, such as 2026-11-20T13:00:00Z";
                    // The `+` of an offset that was not encoded.
                    let time = rfc3339::parse(&value.replace(' ', "+"));
                    set_once("since", &mut since, time.ok_or_else(|| bad("since", &value, what))?)?;
                }
                "limit" => {
                    let number = value.parse().ok().filter(|number| (1..=LIMIT.0).contains(number));
                    let number = number.filter(|_| value.bytes().all(|byte| byte.is_ascii_digit()));
                    set_once(
                        "limit",
                        &mut limit,
                        number.ok_or_else(|| bad("limit", &value, "a number between 1 and 500"))?,
                    )?;
                }
                "agent" => {
                    let what = "the id of an agent, the name of one of the identity file, or project/path:name of one of GitLab";
                    let agent = value.parse().map_err(|_| bad("agent", &value, what))?;
                    add("agent", &mut filter.agents, agent)?;
                }
                "project" => add("project", &mut filter.projects, value)?,
                "kind" => {
                    let kind: EventKind = value.parse().map_err(|_| {
                        bad("kind", &value, &EventKind::ALL.map(EventKind::as_str).join(", "))
                    })?;
                    add("kind", &mut filter.kinds, kind)?;
                }
                "severity" => {
                    let known = [Severity::Info, Severity::Warning, Severity::Error];
                    let found = known.into_iter().find(|severity| severity.as_str() == value);
                    set_once(
                        "severity",
                        &mut severity,
                        found.ok_or_else(|| bad("severity", &value, "info, warning or error"))?,
                    )?;
                }
                "watch" => {
                    let on = match &*value {
                        "" | "true" | "1" => true,
                        "false" | "0" => false,
                        _ => return Err(bad("watch", &value, "true or false")),
                    };
                    set_once("watch", &mut watch, on)?;
                }
                _ => return Err(EventQueryError::Unknown(key.chars().take(100).collect())),
            }
        }
        if after.is_some() && since.is_some() {
            return Err(EventQueryError::Both);
        }
        filter.severity = severity.unwrap_or_default();
        let is_time = since.is_some();
        let after = after.or_else(|| since.map(|since: SystemTime| EventPosition::before(since)));
        Ok(Self { filter, after, is_time, limit: limit.unwrap_or(LIMIT.1), watch: watch.unwrap_or_default() })
    }
}

fn parse(key: &'static str, text: &str) -> Result<EventPosition, EventQueryError> {
    text.parse().map_err(|_| bad(key, text, "the id of an event"))
}

fn bad(key: &'static str, value: &str, what: &str) -> EventQueryError {
    EventQueryError::Value(key, value.chars().take(100).collect(), what.to_owned())
}

fn set_once<T>(key: &'static str, slot: &mut Option<T>, value: T) -> Result<(), EventQueryError> {
    if slot.replace(value).is_some() { Err(EventQueryError::Twice(key)) } else { Ok(()) }
}

fn add<T>(key: &'static str, values: &mut Vec<T>, value: T) -> Result<(), EventQueryError> {
    if values.len() >= MAX_VALUES {
        return Err(EventQueryError::TooMany(key));
    }
    values.push(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_parsed() {
        let query: EventQuery =
            "agent=prod&agent=7&kind=sync&kind=drift&project=shop%2Fweb&severity=warning&limit=5&after=17-2&watch".parse().unwrap();
        assert_eq!(
            (query.filter.agents, query.filter.projects),
            (["prod", "7"].map(|agent| agent.parse().unwrap()).into(), vec!["shop/web".into()])
        );
        assert_eq!(
            (query.filter.kinds, query.filter.severity),
            (vec![EventKind::Sync, EventKind::Drift], Severity::Warning)
        );
        assert_eq!(
            (query.limit, query.after, query.is_time, query.watch),
            (5, Some(EventPosition { millis: 17, sequence: 2 }), false, true)
        );
        let query: EventQuery = "since=1970-01-01T00:00:01Z&watch=false".parse().unwrap();
        assert_eq!(
            (query.after, query.is_time, query.watch),
            (Some(EventPosition { millis: 999, sequence: u64::MAX }), true, false)
        );
        let none: EventQuery = "".parse().unwrap();
        assert_eq!((none.after, none.limit, none.watch), (None, 100, false));
        let empty = "after=&since=&limit=&agent=&project=&kind=&severity=";
        assert_eq!(empty.parse::<EventQuery>().unwrap(), none);
        for since in ["1970-01-01T02:00:01%2B02:00", "1970-01-01T02:00:01+02:00"] {
            let query: EventQuery = format!("since={since}").parse().unwrap();
            assert_eq!(query.after.unwrap().millis, 999, "{since}");
        }
    }

    #[test]
    fn last_event_id_replaces_the_position() {
        let mut query: EventQuery = "since=1970-01-01T00:00:01Z&watch".parse().unwrap();
        query.resume(b"").unwrap();
        assert!(query.is_time);
        query.resume(b"99-1").unwrap();
        assert_eq!((query.after, query.is_time), (Some(EventPosition { millis: 99, sequence: 1 }), false));
        assert!(query.resume(b"\xff").unwrap_err().to_string().starts_with("Last-Event-ID: "));
    }

    #[test]
    fn invalid_query_is_refused() {
        for (query, expected) in [
            ("name=x", "\"name\" is not a parameter: the parameters are after, since"),
            ("after=x", "after: \"x\" is not the id of an event"),
            ("since=yesterday", "since: \"yesterday\" is not a time of RFC 3339"),
            ("after=1-1&since=1970-01-01T00:00:01Z", "after and since are both given"),
            ("limit=0", "limit: \"0\""),
            ("limit=501", "limit: \"501\" is not a number between 1 and 500"),
            ("limit=%2B5", "limit: \"+5\""),
            ("agent=07", "agent: \"07\" is not the id of an agent, the name of one"),
            ("kind=syncs", "kind: \"syncs\" is not agent-connected, "),
            ("severity=fatal", "severity: \"fatal\" is not info, warning or error"),
            ("watch=maybe", "watch: \"maybe\" is not true or false"),
            ("watch&watch", "watch is given twice"),
            (&"agent=a&".repeat(101), "agent has more than 100 values"),
            (&"&".repeat(9000), "longer than 8192 bytes"),
        ] {
            let error = query.parse::<EventQuery>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
