//! The query of a list of agents.

use std::str::FromStr;

use proto::{AgentId, percent};

/// The most agents of one page, which is one lookup in the route store.
const MAX_LIMIT: usize = 500;
/// The agents of one page without `limit`.
pub const DEFAULT_LIMIT: usize = 100;
/// The longest query, in bytes.
pub const MAX_LENGTH: usize = 8192;

/// The parameters of a list of agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    project: Option<u64>,
    name: Option<String>,
    /// Only these agents, unless the list is empty.
    ids: Vec<AgentId>,
    /// The most agents of the page.
    pub limit: usize,
    /// Only agents with a greater id.
    after: Option<AgentId>,
}

/// The error of an invalid query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The query is too long.
    #[error("the query is longer than {MAX_LENGTH} bytes")]
    TooLong,
    /// The parameter is unknown.
    #[error("{0:?} is not a parameter: the parameters are {1}")]
    Unknown(String, &'static str),
    /// The value of a parameter is invalid.
    #[error("{0}: {1:?} is not {2}")]
    Value(&'static str, String, &'static str),
    /// The parameter occurs twice.
    #[error("{0} is given twice")]
    Twice(&'static str),
    /// The headers have no usable token of GitLab.
    #[error("the token of GitLab has to be the value of one header, Private-Token or Job-Token")]
    Token,
    /// The path has no parameters.
    #[error("the path of one agent has no parameters")]
    Unexpected,
}

impl Query {
    /// Returns the project whose agents are requested.
    pub fn project(&self) -> Option<u64> {
        self.project
    }

    /// Returns whether an agent is on this page or on a later one.
    pub fn matches(&self, id: AgentId, project: Option<u64>, name: &str) -> bool {
        self.after.is_none_or(|after| id > after)
            && self.project.is_none_or(|wanted| project == Some(wanted))
            && self.name.as_ref().is_none_or(|wanted| name == wanted)
            && (self.ids.is_empty() || self.ids.contains(&id))
    }
}

impl FromStr for Query {
    type Err = QueryError;

    /// Parses a query. Only the name may be percent-encoded: some clients encode `-`, and no client encodes digits.
    fn from_str(text: &str) -> Result<Self, QueryError> {
        if text.len() > MAX_LENGTH {
            return Err(QueryError::TooLong);
        }
        let (mut project, mut name, mut ids, mut limit, mut after) = (None, None, Vec::new(), None, None);
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "project" | "name" | "id" | "limit" | "continue" if value.is_empty() => {}
                "project" => {
                    set_once("project", &mut project, number("project", value, "the number of a project")?)?
                }
                "name" => set_once("name", &mut name, decoded("name", value)?)?,
                "id" => ids.push(AgentId(number("id", value, "the number of an agent")?)),
                "limit" => set_once("limit", &mut limit, self::limit(value)?)?,
                "continue" => {
                    let last = AgentId(number("continue", value, "the value of a page")?);
                    set_once("continue", &mut after, last)?;
                }
                _ => {
                    let known = "project, name, id, limit and continue";
                    return Err(QueryError::Unknown(key.chars().take(100).collect(), known));
                }
            }
        }
        Ok(Self { project, name, ids, limit: limit.unwrap_or(DEFAULT_LIMIT), after })
    }
}

/// Parses the largest number of entries of a page.
pub fn limit(value: &str) -> Result<usize, QueryError> {
    let what = "a number between 1 and 500";
    let limit =
        usize::try_from(number("limit", value, what)?).ok().filter(|many| (1..=MAX_LIMIT).contains(many));
    limit.ok_or_else(|| bad("limit", value, what))
}

/// Sets the value of a parameter, which a query has at most once.
pub fn set_once<T>(key: &'static str, slot: &mut Option<T>, value: T) -> Result<(), QueryError> {
    if slot.replace(value).is_some() { Err(QueryError::Twice(key)) } else { Ok(()) }
}

/// Parses a number. `what` says in the error what it is.
pub fn number(key: &'static str, value: &str, what: &'static str) -> Result<u64, QueryError> {
    // `parse` accepts `+1`, which some clients decode as a space and a digit.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|_| digits).ok_or_else(|| bad(key, value, what))
}

/// Decodes the value of a parameter.
pub fn decoded(key: &'static str, value: &str) -> Result<String, QueryError> {
    percent::decode_value(value).map_err(|_| bad(key, value, "UTF-8, percent-encoded"))
}

fn bad(key: &'static str, value: &str, what: &'static str) -> QueryError {
    QueryError::Value(key, value.chars().take(100).collect(), what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(query: &str) -> Vec<u64> {
        let query: Query = query.parse().unwrap();
        let agents = [(1, Some(7), "a"), (2, Some(7), "b"), (3, Some(8), "c"), (4, None, "d")];
        let wanted =
            agents.into_iter().filter(|(id, project, name)| query.matches(AgentId(*id), *project, name));
        wanted.map(|(id, ..)| id).collect()
    }

    #[test]
    fn each_parameter_filters() {
        assert_eq!(admitted(""), [1, 2, 3, 4]);
        assert_eq!(admitted("project=7"), [1, 2]);
        assert_eq!(admitted("project=7&continue=1"), [2]);
        assert_eq!(admitted("name=c"), [3]);
        assert_eq!(admitted("name=%63"), [3]);
        assert_eq!(admitted("project=&name=&id=&limit=&continue="), [1, 2, 3, 4]);
        assert_eq!(admitted("id=4&id=1&id=99"), [1, 4]);
        assert!(admitted("&continue=18446744073709551615&").is_empty());
    }

    #[test]
    fn limit_is_bounded() {
        let limit = |query: &str| query.parse().map(|query: Query| query.limit);
        assert_eq!((limit(""), limit("limit=1"), limit("limit=500")), (Ok(100), Ok(1), Ok(500)));
        for bad in ["limit=0", "limit=501", "limit=-1", "limit=+1", "limit=99999999999999999999"] {
            assert!(matches!(limit(bad), Err(QueryError::Value("limit", ..))), "{bad}");
        }
    }

    #[test]
    fn invalid_query_is_refused() {
        for (query, expected) in [
            ("projects=7", "\"projects\" is not a parameter"),
            ("token=abc", "\"token\" is not a parameter"),
            ("project=mine", "project: \"mine\" is not the number of a project"),
            ("project=%37", "project: \"%37\" is not"),
            ("name=%ff", "name: \"%ff\" is not UTF-8"),
            ("project=1&project=2", "project is given twice"),
            ("continue=x", "continue: \"x\" is not the value of a page"),
            (&"&".repeat(9000), "longer than 8192 bytes"),
        ] {
            let error = query.parse::<Query>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
