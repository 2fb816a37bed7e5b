//! The parameters of requests about several agents.

use access::RequestError;
use kas_core::api::{
    QueryError,
    query::{AgentFilter, MAX_LENGTH, Query},
};

/// Parses the query of a fleet.
///
/// # Errors
///
/// A parameter is unknown or wrong.
pub fn parse_fleet(text: &str) -> Result<AgentFilter, QueryError> {
    if text.len() > MAX_LENGTH {
        return Err(QueryError::TooLong);
    }
    let mut filter = AgentFilter::default();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !filter.set(key, value)? {
            let known = "project, group, name and id";
            return Err(QueryError::Unknown(key.chars().take(100).collect(), known));
        }
    }
    Ok(filter)
}

/// Parses the query of a fleet of a caller.
pub(crate) fn fleet_of_caller(text: &str) -> Result<AgentFilter, RequestError> {
    let filter = parse_fleet(text).map_err(refused)?;
    check(&filter)?;
    Ok(filter)
}

/// Parses the query of the agents of a caller.
pub(crate) fn agents_of_caller(text: &str) -> Result<Query, RequestError> {
    let query: Query = text.parse().map_err(refused)?;
    check(&query.filter)?;
    Ok(query)
}

/// Refuses the number of a project: sources of callers know the paths of projects.
fn check(filter: &AgentFilter) -> Result<(), RequestError> {
    match filter.project_id() {
        Some(_) => Err(RequestError::bad_request("project: write the path of the project, like shop/web")),
        None => Ok(()),
    }
}

fn refused(error: QueryError) -> RequestError {
    RequestError::bad_request(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_parameter_is_an_error_that_names_it() {
        for (query, expected) in [
            ("groups=a", "\"groups\" is not a parameter: the parameters are project, group, name and id"),
            ("limit=1", "\"limit\" is not a parameter"),
            ("group=a%20b", "group: \"a%20b\" is not the path of a group"),
            ("project=7", "project: write the path"),
            (&"&".repeat(9000), "longer than 8192 bytes"),
        ] {
            let error = fleet_of_caller(query).unwrap_err().message;
            assert!(error.contains(expected), "{error}");
        }
        assert!(agents_of_caller("project=7").unwrap_err().message.contains("write the path"));
        assert!(agents_of_caller("limit=0").unwrap_err().message.contains("limit"));
        assert!(parse_fleet("project=7&group=shop&name=a&id=1&id=2").is_ok());
        assert_eq!(parse_fleet("project=&group=&name=&id=").unwrap(), AgentFilter::default());
    }
}
