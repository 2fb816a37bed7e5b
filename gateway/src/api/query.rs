//! Which agents a program asks for: pure.

use std::str::FromStr;

use proto::AgentId;

/// Most agents of the identity file that are looked at for one page: the directory is asked once for so many.
const MOST: usize = 500;
/// Most of them if the program does not say.
const DEFAULT: usize = 100;
/// Longest query.
const MAX_LENGTH: usize = 8192;

/// What stands behind `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    project: Option<u64>,
    name: Option<String>,
    /// These only, unless it is empty.
    ids: Vec<AgentId>,
    /// How many agents are looked at.
    pub limit: usize,
    /// Those behind this one only.
    after: Option<AgentId>,
}

/// A query that cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQuery {
    /// Of no honest program.
    #[error("the query is longer than {MAX_LENGTH} bytes")]
    TooLong,
    /// A word that means nothing here.
    #[error("{0:?} is no parameter: there are project, name, id, limit and continue")]
    Unknown(String),
    /// A value that cannot be used.
    #[error("{0}: {1:?} is not {2}")]
    Value(&'static str, String, &'static str),
    /// Which of them is meant?
    #[error("{0} is given twice")]
    Twice(&'static str),
    /// A path that has no parameters.
    #[error("one agent is asked for without a query")]
    Nothing,
}

impl Query {
    /// Whether this agent is asked for, on this page or a later one.
    pub fn admits(&self, id: AgentId, project: Option<u64>, name: &str) -> bool {
        self.after.is_none_or(|after| id > after)
            && self.project.is_none_or(|wanted| project == Some(wanted))
            && self.name.as_ref().is_none_or(|wanted| name == wanted)
            && (self.ids.is_empty() || self.ids.contains(&id))
    }
}

impl FromStr for Query {
    type Err = BadQuery;

    /// Without percent-encoding: nothing that is asked for here needs it.
    fn from_str(text: &str) -> Result<Self, BadQuery> {
        if text.len() > MAX_LENGTH {
            return Err(BadQuery::TooLong);
        }
        let (mut project, mut name, mut ids, mut limit, mut after) = (None, None, Vec::new(), None, None);
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "project" => {
                    once("project", &mut project, number("project", value, "the number of a project")?)?
                }
                "name" => once("name", &mut name, value.to_owned())?,
                "id" => ids.push(AgentId(number("id", value, "the number of an agent")?)),
                "limit" => {
                    let what = "a number between 1 and 500";
                    let many = number("limit", value, what)?;
                    let many = usize::try_from(many).ok().filter(|many| (1..=MOST).contains(many));
                    once("limit", &mut limit, many.ok_or_else(|| bad("limit", value, what))?)?;
                }
                "continue" => {
                    let last = AgentId(number("continue", value, "what a page has said")?);
                    once("continue", &mut after, last)?;
                }
                _ => return Err(BadQuery::Unknown(key.chars().take(100).collect())),
            }
        }
        Ok(Self { project, name, ids, limit: limit.unwrap_or(DEFAULT), after })
    }
}

fn once<T>(key: &'static str, place: &mut Option<T>, value: T) -> Result<(), BadQuery> {
    if place.replace(value).is_some() { Err(BadQuery::Twice(key)) } else { Ok(()) }
}

fn number(key: &'static str, value: &str, what: &'static str) -> Result<u64, BadQuery> {
    // `+1` is a number to `parse`, and a space to some who decode.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|_| digits).ok_or_else(|| bad(key, value, what))
}

fn bad(key: &'static str, value: &str, what: &'static str) -> BadQuery {
    BadQuery::Value(key, value.chars().take(100).collect(), what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(query: &str) -> Vec<u64> {
        let query: Query = query.parse().unwrap();
        let agents = [(1, Some(7), "a"), (2, Some(7), "b"), (3, Some(8), "c"), (4, None, "d")];
        let wanted =
            agents.into_iter().filter(|(id, project, name)| query.admits(AgentId(*id), *project, name));
        wanted.map(|(id, ..)| id).collect()
    }

    #[test]
    fn each_parameter_narrows() {
        assert_eq!(admitted(""), [1, 2, 3, 4]);
        assert_eq!(admitted("project=7"), [1, 2]);
        assert_eq!(admitted("project=7&continue=1"), [2]);
        assert_eq!(admitted("name=c"), [3]);
        assert!(admitted("name=").is_empty());
        assert_eq!(admitted("id=4&id=1&id=99"), [1, 4]);
        assert!(admitted("&continue=18446744073709551615&").is_empty());
    }

    #[test]
    fn a_page_is_bounded() {
        let limit = |query: &str| query.parse().map(|query: Query| query.limit);
        assert_eq!((limit(""), limit("limit=1"), limit("limit=500")), (Ok(100), Ok(1), Ok(500)));
        for bad in ["limit=0", "limit=501", "limit=-1", "limit=+1", "limit=", "limit=99999999999999999999"] {
            assert!(matches!(limit(bad), Err(BadQuery::Value("limit", ..))), "{bad}");
        }
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (query, expected) in [
            ("projects=7", "\"projects\" is no parameter"),
            ("token=abc", "\"token\" is no parameter"),
            ("project=mine", "project: \"mine\" is not the number of a project"),
            ("project=%37", "project: \"%37\" is not"),
            ("project=1&project=2", "project is given twice"),
            ("continue=x", "continue: \"x\" is not what a page has said"),
            (&"&".repeat(9000), "longer than 8192 bytes"),
        ] {
            let error = query.parse::<Query>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
