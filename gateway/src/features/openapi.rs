//! `docs/api.openapi.json` is what the code does: its paths, the parameters of each, and the responses that `docs/api.md` shows.

use environments_wire::{Environment, LastDeployments, Tier};
use kas_core::api::{
    InternalApiError,
    query::{Query, QueryError},
};
use kas_environments::{
    api::{DeploymentList, EnvironmentList, parse_deployments},
    health::EnvironmentHealth,
    parse_environments,
};
use kas_events::{EventQuery, EventQueryError};
use kas_fleet::{Fleet, FleetList, parse_fleet};
use kas_graph::views::api::ViewsResponse;
use proto::{
    events::EventKind,
    graph::{ApplicationList, ComponentList},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testing::json_schema::Validator;

fn document() -> Value {
    serde_json::from_str(include_str!("../../../docs/api.openapi.json")).unwrap()
}

/// Returns the names of the parameters of a query.
fn parameters(path: &str) -> Vec<String> {
    let document = document();
    let all = document["paths"][path]["get"]["parameters"].as_array().unwrap();
    let of_query = all.iter().filter(|parameter| parameter["in"] == "query");
    of_query.map(|parameter| parameter["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn document_has_the_paths_of_the_api() {
    let document = document();
    let mut paths: Vec<String> = document["paths"]
        .as_object()
        .unwrap()
        .keys()
        .map(|path| path.replace("{agent}", "<id or name>"))
        .collect();
    let message = InternalApiError::no_path("/").to_string();
    let (_, listed) = message.split_once("the paths are ").unwrap();
    let mut listed: Vec<&str> = listed.split(" and ").flat_map(|part| part.split(", ")).collect();
    paths.sort();
    listed.sort_unstable();
    assert_eq!(paths, listed);
}

#[test]
fn document_has_the_parameters_of_each_path() {
    let is_known = |path: &str, name: &str| {
        let query = format!("{name}=1");
        let error = match path {
            "/api/v1/agents" => query.parse::<Query>().err(),
            "/api/v1/fleet" | "/api/v1/applications" | "/api/v1/components" => parse_fleet(&query).err(),
            "/api/v1/environments" => parse_environments(&query).err(),
            "/api/v1/deployments" => parse_deployments(&query).err(),
            _ => return !matches!(query.parse::<EventQuery>(), Err(EventQueryError::Unknown(_))),
        };
        !matches!(error, Some(QueryError::Unknown(..)))
    };
    let paths = [
        "/api/v1/agents",
        "/api/v1/fleet",
        "/api/v1/applications",
        "/api/v1/components",
        "/api/v1/environments",
        "/api/v1/deployments",
        "/api/v1/events",
    ];
    for path in paths {
        let names = parameters(path);
        assert!(names.iter().all(|name| is_known(path, name)), "{path}: {names:?}");
        assert!(!is_known(path, "other"), "{path}");
        // The message about an unknown parameter lists all.
        let unknown = match path {
            "/api/v1/agents" => "other=1".parse::<Query>().unwrap_err().to_string(),
            "/api/v1/fleet" | "/api/v1/applications" | "/api/v1/components" => {
                parse_fleet("other=1").unwrap_err().to_string()
            }
            "/api/v1/environments" => parse_environments("other=1").unwrap_err().to_string(),
            "/api/v1/deployments" => parse_deployments("other=1").unwrap_err().to_string(),
            _ => "other=1".parse::<EventQuery>().unwrap_err().to_string(),
        };
        let (_, listed) = unknown.split_once("the parameters are ").unwrap();
        let listed = listed.split(" and ").flat_map(|part| part.split(", "));
        assert_eq!(listed.collect::<Vec<_>>(), names, "{path}");
    }
}

/// Returns the schema of a parameter, or that of one of its values.
fn schema(path: &str, name: &str) -> Value {
    let document = document();
    let all = document["paths"][path]["get"]["parameters"].as_array().unwrap();
    let schema = &all.iter().find(|parameter| parameter["name"] == name).unwrap()["schema"];
    schema.get("items").unwrap_or(schema).clone()
}

#[test]
fn document_allows_the_values_that_are_accepted() {
    let words = |path: &str, name: &str| -> Vec<String> {
        serde_json::from_value(schema(path, name)["enum"].clone()).unwrap()
    };
    assert_eq!(words("/api/v1/events", "kind"), EventKind::ALL.map(EventKind::as_str));
    for word in words("/api/v1/events", "severity") {
        assert!(format!("severity={word}").parse::<EventQuery>().is_ok(), "{word}");
    }
    for word in words("/api/v1/environments", "tier") {
        assert!(parse_environments(&format!("tier={word}")).is_ok(), "{word}");
    }
    for word in words("/api/v1/deployments", "status") {
        assert!(parse_deployments(&format!("status={word}")).is_ok(), "{word}");
    }
    for (path, name, good, bad) in [
        ("/api/v1/agents", "project", json!(7), json!(-1)),
        ("/api/v1/agents", "project", json!("shop/web"), json!("mine")),
        ("/api/v1/environments", "limit", json!(1), json!(501)),
        ("/api/v1/environments", "continue", json!("shop/web:live"), json!("live")),
        ("/api/v1/agents", "id", json!(u64::MAX), json!(-1)),
        ("/api/v1/agents", "limit", json!(500), json!(501)),
        ("/api/v1/agents", "continue", json!("100"), json!("1795832591310-0")),
        ("/api/v1/deployments", "project_id", json!(0), json!(-3174)),
        ("/api/v1/deployments", "commit", json!("3F1c9a7"), json!("main")),
        ("/api/v1/deployments", "status", json!("success"), json!("ok")),
        ("/api/v1/events", "severity", json!("error"), json!("critical")),
        ("/api/v1/events", "after", json!("1795832591310-0"), json!("100")),
        ("/api/v1/environments", "tier", json!("other"), json!("live")),
    ] {
        let validator = Validator::new(schema(path, name));
        for (value, expected) in [(good, true), (bad, false)] {
            assert_eq!(validator.is_valid(&value), expected, "{path} {name}: {value}");
            let query = format!("{name}={}", value.to_string().trim_matches('"'));
            let accepted = match path {
                "/api/v1/agents" => query.parse::<Query>().is_ok(),
                "/api/v1/environments" => parse_environments(&query).is_ok(),
                "/api/v1/deployments" => parse_deployments(&query).is_ok(),
                _ => query.parse::<EventQuery>().is_ok(),
            };
            assert_eq!(accepted, expected, "{path}?{query}");
        }
    }
}

#[test]
fn documented_responses_fit_the_document() {
    let text = include_str!("../../../docs/api.md");
    let examples = text.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let names = [
        "AgentPage",
        "AgentResponse",
        "ViewsResponse",
        "Fleet",
        "FleetApplications",
        "FleetComponents",
        "EnvironmentList",
        "EnvironmentHealth",
        "LastDeployments",
        "DeploymentList",
    ];
    let examples: Vec<&str> = examples.collect();
    assert_eq!(examples.len(), names.len());
    for (name, example) in names.into_iter().zip(examples) {
        assert_fits(name, &serde_json::from_str(example).unwrap());
    }
}

/// Asserts that a value satisfies a schema of the document.
fn assert_fits(name: &str, value: &Value) {
    let schema = json!({
        "$ref": format!("#/components/schemas/{name}"),
        "components": document()["components"],
    });
    let validator = Validator::new(schema);
    assert_eq!(validator.validate(value), Ok(()), "{name}");
}

#[test]
fn environment_without_a_group_fits_the_document() {
    let environment = Environment {
        id: 1,
        project: "shop/web".to_owned(),
        slug: "live".to_owned(),
        name: "live".to_owned(),
        tier: Tier::Production,
        group: None,
        agents: Vec::new(),
    };
    assert_fits("Environment", &serde_json::to_value(environment).unwrap());
}

fn reads_back<T: Serialize + DeserializeOwned>(example: &str) {
    let documented: Value = serde_json::from_str(example).unwrap();
    let read: T = serde_json::from_str(example).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), documented);
}

#[test]
fn responses_of_features_have_the_documented_shapes() {
    let text = include_str!("../../../docs/api.md");
    let mut examples = text.split("```json\n").skip(3).map(|rest| rest.split("```").next().unwrap());
    reads_back::<ViewsResponse>(examples.next().unwrap());
    reads_back::<Fleet>(examples.next().unwrap());
    reads_back::<FleetList<ApplicationList>>(examples.next().unwrap());
    reads_back::<FleetList<ComponentList>>(examples.next().unwrap());
    reads_back::<EnvironmentList>(examples.next().unwrap());
    reads_back::<EnvironmentHealth>(examples.next().unwrap());
    reads_back::<LastDeployments>(examples.next().unwrap());
    reads_back::<DeploymentList>(examples.next().unwrap());
}
