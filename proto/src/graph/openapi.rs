//! `docs/graph.openapi.json` is what these types say. With `UPDATE=1` the test writes it.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};

use super::*;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/graph.openapi.json");

/// The parameters that all paths have, with what they select.
const SELECTION: [(&str, &str); 7] = [
    ("kind", "Kinds or plurals, with or without the group, separated by commas: `Pod`, `deployments.apps`"),
    ("namespace", "Namespaces, separated by commas"),
    ("name", "Names, separated by commas"),
    ("label", "A selector of labels, as for `kubectl --selector`"),
    ("health", "States, separated by commas"),
    ("group", "The id of a group, whose members are selected"),
    (
        "degraded_after",
        "Objects that have been unhealthy for less, such as `60s`, count as healthy in groups",
    ),
];

const PAGE: [(&str, &str); 2] =
    [("limit", "The objects of a page"), ("continue", "The value of the page before")];

const APPLICATIONS: [(&str, &str); 1] =
    [("brief", "`true`: without members, notes and other details, in at most 64 KiB")];

const WATCH: [(&str, &str); 3] = [
    ("groups", "`all`: groups are sent in place of objects"),
    ("views", "`all`: views are sent in place of objects"),
    ("since", "The token of the last commit that the caller has read: only later changes are sent"),
];

/// The states, as alternatives of a pattern.
const HEALTH: &str = "healthy|suspended|progressing|degraded|unknown";

/// Returns the type of a parameter.
fn schema_of(parameter: &str) -> Value {
    match parameter {
        "limit" => json!({"type": "integer", "minimum": 1, "maximum": 5000, "default": 500}),
        "brief" => json!({"type": "string", "enum": ["true", "false"]}),
        "groups" | "views" => json!({"type": "string", "enum": ["all"]}),
        "health" => json!({"type": "string", "pattern": format!("^({HEALTH})(,({HEALTH}))*$")}),
        "degraded_after" => json!({"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"}),
        _ => json!({"type": "string"}),
    }
}

/// Returns the description of a path, whose responses have this type.
fn path<T: JsonSchema>(
    generator: &mut SchemaGenerator,
    summary: &str,
    more: &[(&str, &str)],
    content_types: &[&str],
) -> Value {
    let parameters = SELECTION.iter().chain(more).map(
        |(name, text)| json!({"name": name, "in": "query", "description": text, "schema": schema_of(name)}),
    );
    let schema = generator.subschema_for::<T>();
    let content: BTreeMap<_, _> =
        content_types.iter().map(|name| (*name, json!({"schema": schema}))).collect();
    json!({"get": {
        "summary": summary,
        "parameters": parameters.collect::<Vec<_>>(),
        "responses": {
            "200": {"description": "The answer", "content": content},
            "default": {"$ref": "#/components/responses/error"},
        },
    }})
}

fn without_parameters(mut description: Value) -> Value {
    description["get"]["parameters"] = json!([]);
    description
}

fn document() -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let json_type = &["application/json"][..];
    let generator_ref = &mut generator;
    let paths = json!({
        STATUS_PATH: path::<GraphStatus>(generator_ref, "The resources with their states", &[], json_type),
        OBJECTS_PATH: path::<ObjectList>(generator_ref, "Objects, in order of namespace, kind and name", &PAGE, json_type),
        TREE_PATH: path::<Tree>(generator_ref, "Objects with the objects that they own", &[], json_type),
        GROUPS_PATH: path::<GroupList>(generator_ref, "Groups with their health", &[], json_type),
        HEALTH_PATH: path::<HealthReport>(generator_ref, "The health of the selected objects", &[], json_type),
        COMPONENTS_PATH: path::<ComponentList>(generator_ref, "Well-known programs, and the features that need one", &[], json_type),
        APPLICATIONS_PATH: path::<ApplicationList>(generator_ref, "Applications with their descriptions, members and health", &APPLICATIONS, json_type),
        CAPACITY_PATH: without_parameters(path::<Capacity>(generator_ref, "The nodes, and their CPU and memory", &[], json_type)),
        ENVIRONMENTS_PATH: without_parameters(path::<FoundEnvironmentList>(generator_ref, "The environments of GitLab that objects name", &[], json_type)),
        VIEWS_PATH: path::<ViewList>(generator_ref, "The views that the configuration of the agent defines", &[], json_type),
        WATCH_PATH: path::<GraphEvent>(generator_ref, "A stream with an event in each line", &WATCH, &["application/x-ndjson", "text/event-stream"]),
    });
    let text = |description: &str| json!({"type": "string", "description": description});
    let error = json!({
        "type": "object",
        "required": ["error", "message", "request-id"],
        "properties": {
            "error": text("The reason, for programs"),
            "message": text("What failed and what to do, for people"),
            "request-id": text("The id of the request in the logs"),
            "trace-id": text("The id of its trace, if it is traced"),
        },
    });
    let schemas = generator.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "The graph of a cluster",
            "version": "1",
            "description": "The service `graph` of agentk, through kas. docs/graph.md explains it.",
        },
        "servers": [{
            "url": "https://kas.example.com:8154/agents/{agent}/graph",
            "variables": {"agent": {"default": "production", "description": "The name or the id of the agent"}},
        }],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"error": {
                "description": "An error. The header Kas-Error has its reason, too.",
                "content": {"application/json": {"schema": error}},
            }},
            "schemas": schemas,
        },
    })
}

#[test]
fn document_is_that_of_the_types() {
    let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(FILE, &text).unwrap();
    }
    let written = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        written == text,
        "docs/graph.openapi.json is not what the types say: run this test with UPDATE=1"
    );
}
