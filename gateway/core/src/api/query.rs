//! The query of a list of agents.

use std::str::FromStr;

use access::AgentAttributes;
use proto::{
    AgentId,
    notify::{is_at_or_below, is_project_path},
    percent,
};

/// The most agents of one page, which is one lookup in the route store.
const MAX_LIMIT: usize = 500;
/// The agents of one page without `limit`.
pub const DEFAULT_LIMIT: usize = 100;
/// The longest query, in bytes.
pub const MAX_LENGTH: usize = 8192;
/// The expected value of a group in an error.
pub const GROUP: &str = "the path of a group, like shop/eu";

/// The parameters of a list of agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Selects agents.
    pub filter: AgentFilter,
    /// The most agents of the page.
    pub limit: usize,
    /// Only agents with a greater id.
    after: Option<AgentId>,
}

/// Selects agents. Without parameters, it selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentFilter {
    project: Option<ProjectName>,
    /// A group of GitLab above the project of the agent.
    group: Option<String>,
    name: Option<String>,
    /// Only these agents, unless the list is empty.
    ids: Vec<AgentId>,
}

/// A project, as a query names it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ProjectName {
    Id(u64),
    Path(String),
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

impl AgentFilter {
    /// Adds a parameter. Returns false if it is none of these. Only texts may be percent-encoded: some clients encode `-`, and no client
    /// encodes digits.
    ///
    /// # Errors
    ///
    /// The value is wrong, or the parameter is given twice.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, QueryError> {
        match key {
            "project" | "group" | "name" | "id" if value.is_empty() => {}
            "project" => set_once("project", &mut self.project, project(value)?)?,
            "group" => set_once("group", &mut self.group, group(value)?)?,
            "name" => set_once("name", &mut self.name, decoded("name", value)?)?,
            "id" => self.ids.push(AgentId(number("id", value, "the number of an agent")?)),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the number of the project whose agents are requested.
    pub fn project_id(&self) -> Option<u64> {
        match self.project {
            Some(ProjectName::Id(id)) => Some(id),
            Some(ProjectName::Path(_)) | None => None,
        }
    }

    /// Returns whether the filter selects an agent. An attribute that is not known is not the wanted one.
    pub fn selects(&self, agent: AgentAttributes<'_>, project: Option<u64>) -> bool {
        let AgentAttributes { id, name, project_path } = agent;
        let is_of_project = match &self.project {
            Some(ProjectName::Id(wanted)) => project == Some(*wanted),
            // GitLab has no two projects whose paths differ in case only.
            Some(ProjectName::Path(path)) => {
                project_path.is_some_and(|known| known.eq_ignore_ascii_case(path))
            }
            None => true,
        };
        let is_below = |group: &String| project_path.is_some_and(|path| is_at_or_below(path, group));
        is_of_project
            && self.group.as_ref().is_none_or(is_below)
            && self.name.as_ref().is_none_or(|wanted| name.is_some_and(|name| name.as_str() == wanted))
            && (self.ids.is_empty() || self.ids.contains(&id))
    }
}

impl Query {
    /// Returns whether the page is the first one of its list.
    pub fn is_first_page(&self) -> bool {
        self.after.is_none()
    }

    /// Returns whether an agent is on this page or on a later one.
    pub fn is_after(&self, id: AgentId) -> bool {
        self.after.is_none_or(|after| id > after)
    }
}

impl FromStr for Query {
    type Err = QueryError;

    fn from_str(text: &str) -> Result<Self, QueryError> {
        if text.len() > MAX_LENGTH {
            return Err(QueryError::TooLong);
        }
        let (mut filter, mut limit, mut after) = (AgentFilter::default(), None, None);
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if filter.set(key, value)? {
                continue;
            }
            match key {
                "limit" | "continue" if value.is_empty() => {}
                "limit" => set_once("limit", &mut limit, self::limit(value)?)?,
                "continue" => {
                    let last = AgentId(number("continue", value, "the value of a page")?);
                    set_once("continue", &mut after, last)?;
                }
                _ => {
                    let known = "project, group, name, id, limit and continue";
                    return Err(QueryError::Unknown(key.chars().take(100).collect(), known));
                }
            }
        }
        Ok(Self { filter, limit: limit.unwrap_or(DEFAULT_LIMIT), after })
    }
}

/// Parses the number of a project, or its path, which has a slash.
fn project(value: &str) -> Result<ProjectName, QueryError> {
    let what = "the number of a project, or its path, like shop/web";
    if value.bytes().all(|byte| byte.is_ascii_digit()) {
        return number("project", value, what).map(ProjectName::Id);
    }
    let path = path("project", value, what)?;
    if path.contains('/') { Ok(ProjectName::Path(path)) } else { Err(bad("project", value, what)) }
}

fn group(value: &str) -> Result<String, QueryError> {
    let path = path("group", value, GROUP)?;
    if is_group(&path) { Ok(path) } else { Err(bad("group", value, GROUP)) }
}

/// Returns whether a text can be the path of a group. GitLab reads a number as the id of a group, and the parts `.` and `..` may lead to
/// another path.
pub fn is_group(text: &str) -> bool {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    !is_number && text.split('/').all(|part| !matches!(part, "." | ".."))
}

fn path(key: &'static str, value: &str, what: &'static str) -> Result<String, QueryError> {
    let path = decoded(key, value)?;
    if is_project_path(&path) { Ok(path) } else { Err(bad(key, value, what)) }
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
        let agents = [
            (1, Some(7), Some("shop/web"), "a"),
            (2, Some(7), Some("shop/web"), "b"),
            (3, Some(8), Some("shop/eu/web"), "c"),
            (4, None, None, "d"),
            (5, Some(9), Some("shopping/web"), "e"),
        ];
        let wanted = agents.into_iter().filter(|(id, project, project_path, name)| {
            let name = name.parse().unwrap();
            let agent = AgentAttributes { id: AgentId(*id), name: Some(&name), project_path: *project_path };
            query.is_after(agent.id) && query.filter.selects(agent, *project)
        });
        wanted.map(|(id, ..)| id).collect()
    }

    #[test]
    fn each_parameter_filters() {
        assert_eq!(admitted(""), [1, 2, 3, 4, 5]);
        assert_eq!(admitted("project=7"), [1, 2]);
        assert_eq!(admitted("project=7&continue=1"), [2]);
        assert_eq!(admitted("project=Shop%2Fweb"), [1, 2]);
        assert_eq!(admitted("group=shop"), [1, 2, 3]);
        assert_eq!(admitted("group=shop/eu&project=8"), [3]);
        assert_eq!(admitted("group=shop/eu&project=shop/web"), Vec::<u64>::new());
        assert_eq!(admitted("name=c"), [3]);
        assert_eq!(admitted("name=%63"), [3]);
        assert_eq!(admitted("project=&group=&name=&id=&limit=&continue="), [1, 2, 3, 4, 5]);
        assert_eq!(admitted("id=4&id=1&id=99"), [1, 4]);
        assert!(admitted("&continue=18446744073709551615&").is_empty());
    }

    #[test]
    fn page_without_continue_is_the_first_one() {
        for (query, expected) in [("", true), ("limit=1", true), ("continue=", true), ("continue=1", false)] {
            assert_eq!(query.parse::<Query>().unwrap().is_first_page(), expected, "{query}");
        }
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
            ("project=mine", "project: \"mine\" is not the number of a project, or its path"),
            ("group=a%20b", "group: \"a%20b\" is not the path of a group"),
            ("group=123", "group: \"123\" is not the path of a group"),
            ("group=..", "group: \"..\" is not the path of a group"),
            ("group=shop/./eu", "group: \"shop/./eu\" is not the path of a group"),
            ("group=a&group=b", "group is given twice"),
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
