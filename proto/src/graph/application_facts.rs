//! The facts of an Application of `app.k8s.io` in a cluster or in a manifest, bounded. None of them is trusted: links are passed on if they
//! are `http` or `https`, and nothing is requested from them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    ApplicationCondition, ApplicationContact, ApplicationDescriptor, ApplicationIcon, ApplicationInfo,
    ApplicationKind, ApplicationLink, is_web_address,
};
use crate::LabelSelector;

/// The longest texts, in bytes.
const MAX_NAME: usize = 256;
const MAX_MESSAGE: usize = 512;
const MAX_DESCRIPTION: usize = 1024;
const MAX_NOTES: usize = 4096;
/// The longest selector, in bytes of JSON, and the most values of one. A larger one selects nothing.
const MAX_SELECTOR: usize = 4096;
const MAX_VALUES: usize = 64;
/// The most elements of lists.
const MAX_CONTACTS: usize = 16;
const MAX_WORDS: usize = 32;
const MAX_ICONS: usize = 4;
const MAX_KINDS: usize = 32;
const MAX_CONDITIONS: usize = 8;
const MAX_STATUSES: usize = 8;

/// The facts of an Application.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplicationFacts {
    /// The selector of its members, or `None` if it has no requirement, so that it would select all objects.
    pub selector: Option<LabelSelector>,
    /// The description.
    pub descriptor: ApplicationDescriptor,
    /// The kinds in `componentKinds`, without the numbers of members.
    pub kinds: Vec<ApplicationKind>,
    /// Facts for people.
    pub info: Vec<ApplicationInfo>,
    /// The phase that the installer has set.
    pub assembly_phase: String,
    /// The number of objects by the status that the controller has written.
    pub reported: BTreeMap<String, u64>,
    /// The conditions that the controller has written.
    pub conditions: Vec<ApplicationCondition>,
}

impl ApplicationFacts {
    /// Reads the facts of an Application, or returns `None` for an object of another kind.
    pub fn read(group: &str, kind: &str, object: &Value) -> Option<Box<Self>> {
        if (group, kind) != ("app.k8s.io", "Application") {
            return None;
        }
        let (spec, status) = (&object["spec"], &object["status"]);
        Some(Box::new(Self {
            selector: selector(&spec["selector"]),
            descriptor: descriptor(&spec["descriptor"]),
            kinds: list(&spec["componentKinds"], MAX_KINDS, component_kind),
            info: list(&spec["info"], MAX_WORDS, |item| Some(info(item))),
            assembly_phase: name(&spec["assemblyPhase"]),
            reported: reported(&status["components"]),
            conditions: list(&status["conditions"], MAX_CONDITIONS, condition),
        }))
    }

    /// Returns an estimate of the memory in bytes.
    pub fn size(&self) -> usize {
        let lists = serde_json::to_string(&(&self.descriptor, &self.kinds, &self.info, &self.conditions));
        let selector = self.selector.as_ref().map_or(0, LabelSelector::size);
        size_of::<Self>() + selector + 2 * lists.map_or(0, |text| text.len())
    }
}

fn descriptor(object: &Value) -> ApplicationDescriptor {
    let contacts = |key: &str| list(&object[key], MAX_CONTACTS, contact);
    ApplicationDescriptor {
        application_type: name(&object["type"]),
        version: name(&object["version"]),
        description: text(&object["description"], MAX_DESCRIPTION),
        maintainers: contacts("maintainers"),
        owners: contacts("owners"),
        keywords: list(&object["keywords"], MAX_WORDS, |word| Some(name(word)).filter(|it| !it.is_empty())),
        links: list(&object["links"], MAX_WORDS, |link| {
            Some(ApplicationLink { description: name(&link["description"]), url: web_address(&link["url"])? })
        }),
        icons: list(&object["icons"], MAX_ICONS, |icon| {
            let (size, media_type) = (name(&icon["size"]), name(&icon["type"]));
            Some(ApplicationIcon { src: web_address(&icon["src"])?, size, media_type })
        }),
        notes: text(&object["notes"], MAX_NOTES),
    }
}

fn contact(contact: &Value) -> Option<ApplicationContact> {
    let url = web_address(&contact["url"]).unwrap_or_default();
    let found = ApplicationContact { name: name(&contact["name"]), url, email: name(&contact["email"]) };
    (found != ApplicationContact::default()).then_some(found)
}

/// Returns the fact of an item, or the name of the object that has its value.
fn info(item: &Value) -> ApplicationInfo {
    let sources = [
        ("secretKeyRef", "Secret"),
        ("configMapKeyRef", "ConfigMap"),
        ("serviceRef", "Service"),
        ("ingressRef", "Ingress"),
    ];
    let source = |(key, kind): (&str, &str)| {
        let object = item["valueFrom"][key]["name"].as_str()?;
        Some(format!("{kind}/{}", &object[..object.floor_char_boundary(MAX_NAME)]))
    };
    ApplicationInfo {
        name: name(&item["name"]),
        value: text(&item["value"], MAX_MESSAGE),
        from: sources.into_iter().find_map(source).unwrap_or_default(),
    }
}

fn component_kind(kind: &Value) -> Option<ApplicationKind> {
    let group = name(&kind["group"]);
    // Examples of the specification name the core group so, or write a version.
    let group = match group.as_str() {
        "core" | "v1" => String::new(),
        group => group.split('/').next().unwrap_or_default().to_owned(),
    };
    let kind = Some(name(&kind["kind"])).filter(|kind| !kind.is_empty())?;
    Some(ApplicationKind { group, kind, declared: true, members: 0 })
}

fn reported(components: &Value) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let statuses = components.as_array().into_iter().flatten().map(|component| name(&component["status"]));
    for status in statuses.filter(|status| !status.is_empty()) {
        if counts.len() < MAX_STATUSES || counts.contains_key(&status) {
            *counts.entry(status).or_default() += 1;
        }
    }
    counts
}

fn condition(condition: &Value) -> Option<ApplicationCondition> {
    let condition_type = Some(name(&condition["type"])).filter(|name| !name.is_empty())?;
    Some(ApplicationCondition {
        condition_type,
        status: name(&condition["status"]),
        reason: name(&condition["reason"]),
        message: text(&condition["message"], MAX_MESSAGE),
    })
}

fn selector(selector: &Value) -> Option<LabelSelector> {
    let labels = selector["matchLabels"].as_object().map_or(0, serde_json::Map::len);
    let expressions = selector["matchExpressions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let values = |expression: &Value| expression["values"].as_array().map_or(0, Vec::len);
    let is_small = || {
        labels + expressions.iter().map(values).sum::<usize>() <= MAX_VALUES
            && selector.to_string().len() <= MAX_SELECTOR
    };
    (labels + expressions.len() > 0 && is_small()).then(|| LabelSelector::of_json(selector))
}

fn web_address(value: &Value) -> Option<String> {
    value.as_str().filter(|address| is_web_address(address)).map(str::to_owned)
}

fn list<T>(values: &Value, most: usize, read: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    values.as_array().into_iter().flatten().filter_map(read).take(most).collect()
}

fn name(value: &Value) -> String {
    text(value, MAX_NAME)
}

fn text(value: &Value, most: usize) -> String {
    let text = value.as_str().unwrap_or_default();
    text[..text.floor_char_boundary(most)].to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: Value, status: Value) -> ApplicationFacts {
        *ApplicationFacts::read("app.k8s.io", "Application", &json!({"spec": spec, "status": status}))
            .unwrap()
    }

    #[test]
    fn descriptor_is_read() {
        let facts = read(
            json!({
                "descriptor": {
                    "type": "wordpress", "version": "4.9.4", "description": "a blog",
                    "maintainers": [{"name": "Kenneth", "email": "kenneth@example.com", "url": "https://example.com/k"}],
                    "owners": [{"name": "ops"}, {}],
                    "keywords": ["cms", 3],
                    "links": [{"description": "About", "url": "https://wordpress.org/"}],
                    "icons": [{"src": "https://example.com/i.png", "size": "25x25", "type": "image/png"}, {"src": "data:image/png;base64,AA"}],
                    "notes": "# Start",
                },
                "componentKinds": [{"group": "core", "kind": "Service"}, {"group": "apps", "kind": "StatefulSet"}, {"group": "x"}],
                "selector": {"matchLabels": {"app.kubernetes.io/name": "blog"}},
                "info": [{"name": "user", "value": "admin"},
                    {"name": "password", "type": "Reference", "valueFrom": {"type": "SecretKeyRef", "secretKeyRef": {"name": "db", "key": "p"}}}],
                "assemblyPhase": "Pending",
            }),
            json!({
                "components": [{"name": "a", "status": "Ready"}, {"name": "b", "status": "InProgress"}, {"name": "c", "status": "Ready"}],
                "conditions": [{"type": "Ready", "status": "False", "reason": "ComponentsNotReady", "message": "some components not ready"}],
            }),
        );
        let ApplicationDescriptor {
            application_type,
            version,
            maintainers,
            owners,
            keywords,
            links,
            icons,
            notes,
            ..
        } = facts.descriptor;
        assert_eq!((&*application_type, &*version, &*notes), ("wordpress", "4.9.4", "# Start"));
        assert_eq!(
            (&*maintainers[0].email, &*maintainers[0].url),
            ("kenneth@example.com", "https://example.com/k")
        );
        assert_eq!((owners.len(), keywords, links.len(), icons.len()), (1, vec!["cms".to_owned()], 1, 1));
        let kinds: Vec<_> = facts.kinds.iter().map(|kind| format!("{}/{}", kind.group, kind.kind)).collect();
        assert_eq!(kinds, ["/Service", "apps/StatefulSet"]);
        assert_eq!((&*facts.info[0].value, &*facts.info[1].from), ("admin", "Secret/db"));
        assert_eq!(facts.assembly_phase, "Pending");
        assert_eq!(facts.reported, BTreeMap::from([("InProgress".to_owned(), 1), ("Ready".to_owned(), 2)]));
        assert_eq!(facts.conditions[0].reason, "ComponentsNotReady");
    }

    #[test]
    fn address_that_is_no_page_is_left_out() {
        for address in ["javascript:alert(1)", "data:text/html,<script>"] {
            let facts = read(
                json!({"descriptor": {
                    "links": [{"description": "a", "url": address}],
                    "icons": [{"src": address}],
                    "maintainers": [{"name": "a", "url": address}],
                }}),
                Value::Null,
            );
            assert!(facts.descriptor.links.is_empty() && facts.descriptor.icons.is_empty(), "{address}");
            assert_eq!(facts.descriptor.maintainers[0].url, "", "{address}");
        }
    }

    #[test]
    fn hostile_application_is_bounded() {
        let long = "é".repeat(1 << 20);
        let contact = json!({"name": long, "email": long, "url": long});
        let many = |value: &Value| vec![value.clone(); 10_000];
        let kinds: Vec<_> = (0..10_000).map(|n| json!({"group": "a", "kind": format!("K{n}")})).collect();
        let components: Vec<_> = (0..10_000).map(|n| json!({"status": n.to_string()})).collect();
        let facts = read(
            json!({
                "descriptor": {"type": long, "version": long, "description": long, "notes": long,
                    "maintainers": [contact, contact], "owners": many(&json!({"name": "a"})), "keywords": many(&json!("word")),
                    "links": many(&json!({"url": "https://example.com", "description": "a"}))},
                "componentKinds": kinds, "info": many(&json!({"name": "a", "value": "b"})), "assemblyPhase": long,
                "selector": {"matchLabels": {"a": long}},
            }),
            json!({"components": components, "conditions": many(&json!({"type": "Ready", "message": "m"}))}),
        );
        assert!(facts.size() < 64 << 10, "{}", facts.size());
        assert_eq!((facts.kinds.len(), facts.reported.len(), facts.conditions.len()), (32, 8, 8));
        assert_eq!(facts.selector, None, "it is too long");
        for wrong in
            [json!(null), json!([]), json!("a"), json!({"descriptor": [1], "selector": 3, "info": {"a": 1}})]
        {
            assert_eq!(read(wrong.clone(), wrong), ApplicationFacts::default());
        }
    }

    #[test]
    fn selector_with_many_values_selects_nothing() {
        let of_values = |count: usize| {
            let expression = json!({"key": "a", "operator": "NotIn", "values": vec!["b"; count]});
            read(json!({"selector": {"matchExpressions": [expression]}}), Value::Null)
        };
        assert_eq!(of_values(1000).selector, None);
        let most = of_values(MAX_VALUES);
        assert!(most.selector.is_some());
        let counted = most.size() - of_values(1000).size();
        assert!(counted >= MAX_VALUES * (size_of::<String>() + 16), "{counted}");
    }

    #[test]
    fn selector_without_requirements_selects_nothing() {
        for selector in [json!({}), json!({"matchLabels": {}}), json!({"matchExpressions": []}), Value::Null]
        {
            assert_eq!(read(json!({"selector": selector}), Value::Null).selector, None, "{selector}");
        }
        let expressions =
            json!({"matchExpressions": [{"key": "part", "operator": "In", "values": ["shop"]}]});
        let selector = read(json!({"selector": expressions}), Value::Null).selector.unwrap();
        assert!(selector.matches(|_| Some("shop")) && !selector.matches(|_| Some("bank")));
    }
}
