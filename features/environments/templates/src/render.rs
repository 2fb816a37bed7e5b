//! Replaces the marks of a template by values.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::{
    EnvironmentTemplate, RenderedObject, Values, Variable,
    marks::{Part, parts, unmarked},
    object::InvalidObject,
};

/// The longest value of a variable, in bytes.
const MAX_VALUE: usize = 1024;
/// The most bytes of all texts of the objects.
const MAX_RENDERED: usize = 256 << 10;

/// The objects of a template cannot be made with these values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct EnvironmentRenderError {
    /// The file and the line of the object.
    pub place: String,
    /// The object as far as it is known, and the problem.
    pub what: String,
}

/// The fault of an object: of its template, or of a value of GitLab.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ObjectFault {
    #[error(transparent)]
    Invalid(#[from] InvalidObject),
    #[error("the template has {0} twice")]
    Duplicate(String),
    #[error("two keys become {0:?}")]
    DuplicateKey(String),
    #[error("the objects have over {MAX_RENDERED} bytes")]
    TooLarge,
    /// `known` are the variables with a value.
    #[error("{variable} is not known here; the variables with a value are {known}")]
    NoValue { variable: Variable, known: String },
    #[error("the value of {0} has over {MAX_VALUE} bytes")]
    LongValue(Variable),
    #[error("the value of {0} has a control character")]
    ControlCharacter(Variable),
}

/// Replaces marks, and counts the bytes of the result.
struct Renderer<'a> {
    values: &'a Values,
    bytes: usize,
}

impl EnvironmentTemplate {
    /// Returns the objects with these values, in the order of the template.
    ///
    /// # Errors
    ///
    /// A variable has no value, or one that cannot be in an object; a name is not one of Kubernetes; two objects are the same; or the
    /// objects are too large.
    pub fn render(&self, values: &Values) -> Result<Vec<RenderedObject>, EnvironmentRenderError> {
        let mut renderer = Renderer { values, bytes: 0 };
        let mut seen = HashSet::new();
        let objects = self.objects.iter().map(|template| {
            let error = |fault: ObjectFault| {
                let name = template.object.get("metadata").and_then(|metadata| metadata["name"].as_str());
                let kind = template.object.get("kind").and_then(Value::as_str).unwrap_or_default();
                let name = unmarked(name.unwrap_or_default());
                EnvironmentRenderError {
                    place: format!("{}:{}", self.file, template.line),
                    what: format!("{kind} {name}: {fault}"),
                }
            };
            let object = renderer.mapping(&template.object).map_err(error)?;
            let object =
                RenderedObject::new(template.line, object).map_err(|invalid| error(invalid.into()))?;
            let RenderedObject { group, kind, namespace, name, .. } = &object;
            if seen.insert((group.clone(), kind.clone(), namespace.clone(), name.clone())) {
                Ok(object)
            } else {
                Err(error(ObjectFault::Duplicate(object.to_string())))
            }
        });
        objects.collect()
    }
}

impl Renderer<'_> {
    fn mapping(&mut self, template: &Map<String, Value>) -> Result<Map<String, Value>, ObjectFault> {
        let mut object = Map::new();
        for (key, value) in template {
            let key = self.text(key)?;
            let value = self.value(value)?;
            if let Some(_replaced) = object.insert(key.clone(), value) {
                return Err(ObjectFault::DuplicateKey(key));
            }
        }
        Ok(object)
    }

    fn value(&mut self, template: &Value) -> Result<Value, ObjectFault> {
        Ok(match template {
            Value::String(text) => Value::String(self.text(text)?),
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.value(item)).collect::<Result<_, _>>()?)
            }
            Value::Object(object) => Value::Object(self.mapping(object)?),
            Value::Null | Value::Bool(_) | Value::Number(_) => template.clone(),
        })
    }

    fn text(&mut self, template: &str) -> Result<String, ObjectFault> {
        let mut text = String::with_capacity(template.len());
        for part in parts(template) {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Variable(variable) => text.push_str(self.variable(variable)?),
            }
        }
        self.bytes += text.len();
        if self.bytes > MAX_RENDERED { Err(ObjectFault::TooLarge) } else { Ok(text) }
    }

    fn variable(&self, variable: Variable) -> Result<&str, ObjectFault> {
        let Some(value) = self.values.get(variable) else {
            let known: Vec<_> = self.values.known().map(|known| known.to_string()).collect();
            return Err(ObjectFault::NoValue { variable, known: known.join(", ") });
        };
        if value.len() > MAX_VALUE {
            return Err(ObjectFault::LongValue(variable));
        }
        if value.chars().any(char::is_control) {
            Err(ObjectFault::ControlCharacter(variable))
        } else {
            Ok(value)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::{DEFAULT_TEMPLATE, DeleteResources};

    fn parse(text: &str) -> Result<EnvironmentTemplate, String> {
        EnvironmentTemplate::parse(Path::new("default.yaml"), text).map_err(|error| error.to_string())
    }

    /// The values that kas knows of a job.
    fn values() -> Values {
        Values::default()
            .with(Variable::AgentId, 7)
            .with(Variable::AgentName, "prod")
            .with(Variable::EnvironmentSlug, "review-1")
            .with(Variable::EnvironmentTier, "development")
            .with(Variable::ProjectId, 30)
            .with(Variable::PipelineId, 6)
            .with(Variable::JobId, 3)
            .with(Variable::UserId, 5)
            .with(Variable::Username, "alice")
    }

    #[test]
    fn default_template_gives_jobs_a_namespace() {
        let template = parse(DEFAULT_TEMPLATE).unwrap();
        assert_eq!(template.delete_resources, DeleteResources::OnStop);
        let objects = template.render(&values()).unwrap();
        let names: Vec<_> = objects.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["Namespace review-1-30-7", "RoleBinding review-1-30-7/bind-review-1-30-7"]);
        let subjects = &objects[1].object["subjects"];
        assert_eq!(subjects[0]["name"], "gitlab:project_env:30:review-1");
    }

    #[test]
    fn example_has_each_key() {
        let template = parse(include_str!("../../../../deploy/environment-template.example.yaml")).unwrap();
        let names: Vec<_> = template.render(&values()).unwrap().iter().map(ToString::to_string).collect();
        let expected = [
            "Namespace review-1-30-7",
            "ServiceAccount review-1-30-7/app",
            "RoleBinding review-1-30-7/deployers",
        ];
        assert_eq!(names, expected);
    }

    /// As GitLab's documentation has them, too.
    #[test]
    fn expressions_need_no_quotes() {
        let text = "objects:\n- apiVersion: v1\n  kind: ServiceAccount\n  metadata:\n    name: {{ .agent.name }}-{{ .ci_job.id }}\n    namespace: {{ .environment.slug }}\n    labels: {user: {{ .user.username }}, example.com/{{ .project.id }}: x}\n";
        let objects = parse(text).unwrap().render(&values()).unwrap();
        let metadata = json!({"name": "prod-3", "namespace": "review-1", "labels": {"user": "alice", "example.com/30": "x"}});
        assert_eq!(objects[0].object["metadata"], metadata);
        assert_eq!(objects[0].line, 2);
    }

    #[test]
    fn no_value_adds_a_key_or_an_object() {
        let text = "objects:\n- {apiVersion: v1, kind: ServiceAccount, metadata: {name: a, annotations: {x: '{{ .user.username }}', y: {{ .environment.tier }}}}}\n";
        let template = parse(text).unwrap();
        let hostile = [
            "x', z: 'y",
            "\"}}, {kind: Namespace}",
            "{{ .project.id }}",
            "- a: b",
            "*alias",
            "&anchor x",
            "!!binary aGk=",
            "null",
            "true",
            "0x10",
            "\u{e000}project.id\u{e001}",
            "# comment",
            "a: b",
            "|",
            "\u{2028}kind: Namespace",
        ];
        for value in hostile {
            let values = values().with(Variable::Username, value).with(Variable::EnvironmentTier, value);
            let objects = template.render(&values).unwrap();
            let annotations = json!({"x": value, "y": value});
            let expected = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "annotations": annotations}});
            assert_eq!((objects.len(), &objects[0].object), (1, &expected), "{value}");
        }
        for value in ["a\nkind: Namespace", "a\r\nb", "a\0", "\u{85}x", "\u{7f}"] {
            let error = template.render(&values().with(Variable::Username, value)).unwrap_err();
            assert!(
                error.to_string().contains("the value of .user.username has a control character"),
                "{error}"
            );
        }
        let long = template.render(&values().with(Variable::Username, "x".repeat(MAX_VALUE + 1)));
        assert!(long.unwrap_err().to_string().contains("has over 1024 bytes"));
    }

    #[test]
    fn name_that_leads_to_another_path_is_refused() {
        let text =
            "objects:\n- {apiVersion: v1, kind: Namespace, metadata: {name: '{{ .environment.slug }}'}}\n";
        let template = parse(text).unwrap();
        for slug in ["../../secrets", "a/b", "", "A", "a b", "-a", "a?x=1", "a%2fb", ".", &"x".repeat(64)] {
            let error = template.render(&values().with(Variable::EnvironmentSlug, slug)).unwrap_err();
            assert_eq!(error.place, "default.yaml:2", "{slug}");
            assert!(error.what.starts_with("Namespace {{ .environment.slug }}: "), "{error}");
        }
    }

    #[test]
    fn variable_without_a_value_is_an_error() {
        let text = "objects:\n- apiVersion: v1\n  kind: Namespace\n  metadata: {name: a, annotations: {url: '{{ .environment.url }}'}}\n";
        let error = parse(text).unwrap().render(&values()).unwrap_err().to_string();
        let expected = "default.yaml:2: Namespace a: .environment.url is not known here; the variables with a value are .agent.id, ";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn invalid_template_is_refused_with_file_and_line() {
        let object = |rest: &str| format!("objects:\n- apiVersion: v1\n  kind: ConfigMap\n  {rest}\n");
        for (text, expected) in [
            ("", "default.yaml"),
            ("objects: []", "default.yaml:1:10: objects: the template has no object"),
            ("objects: {}", "objects: it must be a list"),
            ("objects: [1]", "default.yaml:1:11: objects[0]"),
            (
                &*format!("{}applies: on_start", object("metadata: {name: a}")),
                "default.yaml:5:1: applies: unknown field `applies`",
            ),
            (&*format!("{}delete_resources: later", object("metadata: {name: a}")), "default.yaml:5:"),
            (&*format!("{}apply_resources: never", object("metadata: {name: a}")), "default.yaml:5:"),
            ("objects: [{kind: A}]", "objects[0].apiVersion: each object has apiVersion"),
            (
                "objects: [{apiVersion: v1, kind: '{{ .user.username }}'}]",
                "objects[0].kind: each object has kind",
            ),
            (&*object("spec: {}"), "default.yaml:2:3: objects[0].metadata: "),
            (&*object("metadata: {}"), "objects[0].metadata.name: "),
            (&*object("metadata: {generateName: a}"), "objects[0].metadata.name: "),
            (&*object("metadata: {name: 1}"), "objects[0].metadata.name: "),
            (&*object("metadata: {name: a, namespace: 1}"), "objects[0].metadata.namespace: "),
            (&*object("metadata: {name: a, labels: {a: 1}}"), "objects[0].metadata.labels: "),
            (&*object("metadata: {name: a, annotations: [a]}"), "objects[0].metadata.annotations: "),
            (&*object("metadata: {name: a, resourceVersion: '1'}"), "objects[0].metadata.resourceVersion: "),
            (&*format!("{}  status: {{}}", object("metadata: {name: a}")), "objects[0].status: "),
            (
                &*object("metadata: {name: '{{ .project.nam }}'}"),
                "default.yaml:4:21: there is no variable \".project.nam\"",
            ),
            ("objects: *a", "default.yaml:1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}\ngave {error}");
        }
        assert!(
            parse(&" ".repeat(proto::agent_configuration::TemplateFile::MAX_BYTES + 1))
                .unwrap_err()
                .contains("at most 65536 bytes")
        );
        let many = format!("objects: [{}]", "{},".repeat(crate::MAX_OBJECTS + 1));
        assert!(parse(&many).unwrap_err().contains("at most 50 objects"));
    }

    #[test]
    fn documents_that_expand_are_refused() {
        let mut text = "x: &x0 [a, a, a, a, a, a, a, a, a]\n".to_owned();
        for level in 1..9 {
            let aliases = vec![format!("*x{}", level - 1); 9].join(", ");
            text += &format!("x{level}: &x{level} [{aliases}]\n");
        }
        assert!(parse(&text).is_err());
        let names = "{{ .user.username }}".repeat(1000);
        let text = format!("objects: [{{apiVersion: v1, kind: A, metadata: {{name: a}}, data: '{names}'}}]");
        let values = values().with(Variable::Username, "x".repeat(MAX_VALUE));
        assert!(parse(&text).unwrap().render(&values).unwrap_err().what.contains("over 262144 bytes"));
    }

    #[test]
    fn same_object_twice_is_refused() {
        let one = "{apiVersion: v1, kind: Namespace, metadata: {name: '{{ .environment.slug }}'}}";
        let two = "{apiVersion: v1, kind: Namespace, metadata: {name: review-1}}";
        let error = parse(&format!("objects: [{one}, {two}]")).unwrap().render(&values()).unwrap_err();
        assert!(error.what.ends_with("the template has Namespace review-1 twice"), "{error}");
        let keys = "objects: [{apiVersion: v1, kind: A, metadata: {name: a, labels: {'{{ .project.id }}': a, '30': b}}}]";
        assert!(parse(keys).unwrap().render(&values()).unwrap_err().what.contains("two keys become \"30\""));
    }
}
