//! The parameters of a request.

use proto::{
    graph::{APPLICATIONS_PATH, CAPACITY_PATH, ENVIRONMENTS_PATH, OBJECTS_PATH, Token, WATCH_PATH},
    percent,
};
use resource_graph::{ApplicationDetail, InvalidListKey, ListKey, Query, QueryError};

/// The default and the largest number of objects of a page.
const LIMIT: (usize, usize) = (500, 5000);
/// The longest query, in bytes.
const MAX_QUERY: usize = 8192;

/// The parameters of a request.
#[derive(Debug)]
pub(super) struct Parameters {
    pub(super) query: Query,
    /// The selector of labels as it was written.
    pub(super) labels: String,
    /// The objects of a page.
    pub(super) limit: usize,
    /// The place of the last object of the page before.
    pub(super) after: Option<ListKey>,
    /// The details of applications.
    pub(super) detail: ApplicationDetail,
    /// The position from which a watch continues.
    pub(super) since: Option<Token>,
    /// The kind of data that a watch sends.
    pub(super) watched: Watched,
}

/// The kind of data that a watch sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Watched {
    #[default]
    Objects,
    Groups,
    Views,
}

/// A parameter that is unknown or wrong.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParameterError {
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("the query is longer than {MAX_QUERY} bytes")]
    TooLong,
    #[error("the value of {0} is no UTF-8")]
    NoText(String),
    #[error("limit={0}: write a number from 1 to {max}", max = LIMIT.1)]
    Limit(String),
    #[error("continue={0}: {1}")]
    Continue(String, InvalidListKey),
    #[error("brief={0}: the values are true and false")]
    Brief(String),
    #[error("since: {0}")]
    Since(proto::graph::InvalidToken),
    #[error("groups={0}: the only value is all; a parameter group=<id> selects one group")]
    Groups(String),
    #[error("views={0}: the only value is all, without groups")]
    Views(String),
    #[error("there is no parameter {0:?}: the answer is about the whole cluster")]
    Unexpected(String),
    #[error("there is no parameter {0:?}; the parameters are {1}")]
    Unknown(String, &'static str),
}

impl Parameters {
    /// Parses the query of a request.
    pub(super) fn parse(path: &str, text: &str) -> Result<Self, ParameterError> {
        if text.len() > MAX_QUERY {
            return Err(ParameterError::TooLong);
        }
        let mut parameters = Self {
            query: if path == CAPACITY_PATH { Query::of_capacity() } else { Query::default() },
            labels: String::new(),
            limit: LIMIT.0,
            after: None,
            detail: ApplicationDetail::Full,
            since: None,
            watched: Watched::Objects,
        };
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent::decode_value(value)
                .map_err(|_| ParameterError::NoText(key.chars().take(100).collect()))?;
            parameters.set(path, key, &value)?;
        }
        Ok(parameters)
    }

    fn set(&mut self, path: &str, key: &str, value: &str) -> Result<(), ParameterError> {
        if is_of_whole_cluster(path) {
            return Err(ParameterError::Unexpected(key.chars().take(100).collect()));
        }
        let (is_watch, has_pages, has_details) =
            (path == WATCH_PATH, path == OBJECTS_PATH, path == APPLICATIONS_PATH);
        if self.query.set(key, value)? {
            if key == "label" {
                value.clone_into(&mut self.labels);
            }
            return Ok(());
        }
        match key {
            "limit" | "continue" if has_pages && value.is_empty() => {}
            "brief" if has_details && value.is_empty() => {}
            "since" | "groups" | "views" if is_watch && value.is_empty() => {}
            "limit" if has_pages => {
                let limit = value.parse().ok().filter(|limit| (1..=LIMIT.1).contains(limit));
                self.limit = limit.ok_or_else(|| ParameterError::Limit(value.to_owned()))?;
            }
            "continue" if has_pages => {
                let key = value.parse().map_err(|error| ParameterError::Continue(value.to_owned(), error))?;
                self.after = Some(key);
            }
            "brief" if has_details => {
                self.detail = match value {
                    "true" => ApplicationDetail::Brief,
                    "false" => ApplicationDetail::Full,
                    _ => return Err(ParameterError::Brief(value.to_owned())),
                };
            }
            "since" if is_watch => self.since = Some(value.parse().map_err(ParameterError::Since)?),
            "groups" if is_watch => {
                if value != "all" {
                    return Err(ParameterError::Groups(value.to_owned()));
                }
                self.watched = Watched::Groups;
            }
            "views" if is_watch => {
                if value != "all" || self.watched == Watched::Groups {
                    return Err(ParameterError::Views(value.to_owned()));
                }
                self.watched = Watched::Views;
            }
            _ => {
                let known = known(path);
                return Err(ParameterError::Unknown(key.chars().take(100).collect(), known));
            }
        }
        Ok(())
    }
}

/// Returns whether a path has no parameters.
fn is_of_whole_cluster(path: &str) -> bool {
    matches!(path, CAPACITY_PATH | ENVIRONMENTS_PATH)
}

/// Returns the parameters of a path, for people.
fn known(path: &str) -> &'static str {
    match path {
        WATCH_PATH => "kind, namespace, name, label, health, group, degraded_after, groups, views and since",
        OBJECTS_PATH => "kind, namespace, name, label, health, group, degraded_after, limit and continue",
        APPLICATIONS_PATH => "kind, namespace, name, label, health, group, degraded_after and brief",
        _ => "kind, namespace, name, label, health, group and degraded_after",
    }
}

#[cfg(test)]
mod tests {
    use proto::graph::TREE_PATH;

    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let text = "kind=Pod,deployments.apps&namespace=a&label=app%3Dweb,tier&health=degraded&limit=7&continue=a%2FPod%2Fweb%2F";
        let parameters = Parameters::parse(OBJECTS_PATH, text).unwrap();
        assert_eq!(
            (parameters.limit, parameters.after.unwrap().to_string(), &*parameters.labels),
            (7, "a/Pod/web/".to_owned(), "app=web,tier")
        );
        let token = "07070707070707070707070707070707.2.41";
        let watch = Parameters::parse(WATCH_PATH, &format!("groups=all&since={token}")).unwrap();
        assert_eq!((watch.since.unwrap().to_string(), watch.watched), (token.to_owned(), Watched::Groups));
        let selector = Parameters::parse(OBJECTS_PATH, "label=app+in+(a,b)").unwrap();
        assert_eq!(selector.labels, "app in (a,b)");
    }

    #[test]
    fn parameter_without_a_value_selects_nothing() {
        for path in [OBJECTS_PATH, APPLICATIONS_PATH, WATCH_PATH] {
            let names = known(path).replace(" and ", ", ");
            let empty = names.split(", ").map(|name| format!("{name}=")).collect::<Vec<_>>().join("&");
            let parameters = Parameters::parse(path, &empty).unwrap();
            assert_eq!(format!("{parameters:?}"), format!("{:?}", Parameters::parse(path, "").unwrap()));
        }
        assert!(Parameters::parse(OBJECTS_PATH, "kinds=").is_err());
    }

    #[test]
    fn parameters_are_those_of_the_openapi_document() {
        let document = include_str!("../../../../docs/graph.openapi.json");
        let document: serde_json::Value = serde_json::from_str(document).unwrap();
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 11);
        for (path, description) in paths {
            let parameters = description["get"]["parameters"].as_array().unwrap().iter();
            let names: Vec<&str> = parameters.map(|parameter| parameter["name"].as_str().unwrap()).collect();
            let Some((last, others)) = names.split_last() else {
                assert!(is_of_whole_cluster(path), "{path}");
                continue;
            };
            assert_eq!(known(path), format!("{} and {last}", others.join(", ")), "{path}");
            for name in names {
                let unknown = Parameters::parse(path, &format!("{name}=1"));
                assert!(!matches!(unknown, Err(ParameterError::Unknown(..))), "{path}: {name}");
            }
        }
    }

    #[test]
    fn wrong_parameter_is_an_error_that_names_it() {
        for (path, text, expected) in [
            (OBJECTS_PATH, "kinds=Pod", "there is no parameter \"kinds\""),
            (OBJECTS_PATH, "limit=0", "limit=0"),
            (OBJECTS_PATH, "limit=5001", "from 1 to 5000"),
            (OBJECTS_PATH, "continue=3e0c", "continue=3e0c: use the value"),
            (OBJECTS_PATH, "since=1", "there is no parameter \"since\""),
            (OBJECTS_PATH, "health=good", "use healthy, suspended"),
            (OBJECTS_PATH, "label=a%20b", "write key=value"),
            (OBJECTS_PATH, "degraded_after=soon", "degraded_after=soon"),
            (OBJECTS_PATH, "name=%ff", "no UTF-8"),
            (TREE_PATH, "limit=1", "group and degraded_after"),
            (CAPACITY_PATH, "namespace=a", "about the whole cluster"),
            (ENVIRONMENTS_PATH, "kind=Pod", "about the whole cluster"),
            (APPLICATIONS_PATH, "brief=yes", "brief=yes: the values are true and false"),
            (TREE_PATH, "brief=true", "there is no parameter \"brief\""),
            (WATCH_PATH, "limit=1", "there is no parameter \"limit\""),
            (WATCH_PATH, "since=1", "since: the token"),
            (WATCH_PATH, "groups=some", "groups=some"),
            (WATCH_PATH, "views=some", "views=some"),
            (WATCH_PATH, "groups=all&views=all", "without groups"),
        ] {
            let error = Parameters::parse(path, text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(Parameters::parse(OBJECTS_PATH, &"x".repeat(MAX_QUERY + 1)).is_err());
    }
}
