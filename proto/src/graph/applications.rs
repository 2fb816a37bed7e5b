//! The applications of a cluster: objects of `app.k8s.io`, and objects with the recommended labels of Kubernetes.

use std::collections::BTreeMap;

use http::Uri;
use serde::{Deserialize, Serialize};

use super::{GroupHealth, HealthState, is_false, is_zero_u64};

/// The longest address of a page, in bytes.
const MAX_ADDRESS: usize = 1024;
/// The largest brief application, and the largest brief description, in bytes of JSON. Of a larger one, no text of its author is kept but the
/// version.
const MAX_BRIEF: usize = 2 << 10;
/// The most contacts, links and statuses of a brief application, and its longest description in bytes.
const BRIEF_ELEMENTS: usize = 3;
const BRIEF_STATUSES: usize = 8;
const BRIEF_DESCRIPTION: usize = 256;

/// The applications of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ApplicationList {
    /// The applications, at most 200, in order of namespace and name.
    pub applications: Vec<Application>,
    /// The number of applications that were left out, because there are too many, or because the answer is too large.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub omitted: u64,
    /// The reasons why something may be missing, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial: Vec<String>,
}

/// Objects of a namespace that are one application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Application {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The way in which it was found.
    pub origin: ApplicationOrigin,
    /// The id of the group of its members, if it is an object: a value of the parameter `group`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The label of its members in the namespace, if labels name it: a value of the parameter `label`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// The description of the application. Its texts are those of the object, cut where they are too long.
    pub descriptor: ApplicationDescriptor,
    /// The program that manages its objects, if all of them name the same one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub managed_by: String,
    /// The phase that the installer has set: `Pending`, `Succeeded` or `Failed`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub assembly_phase: String,
    /// Facts for people, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub info: Vec<ApplicationInfo>,
    /// The kinds that the object names and those of the members, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<ApplicationKind>,
    /// The members that the caller may see, at most 100, in order of kind and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<ApplicationMember>,
    /// The number of members that the caller may see and that are not in the list.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub omitted_members: u64,
    /// The number of objects by the status that the controller of `app.k8s.io` has written, such as `Ready` or `InProgress`, at most 8.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reported: BTreeMap<String, u64>,
    /// The conditions that the controller has written, at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<ApplicationCondition>,
    /// The health of the members; `unknown` if the caller sees none.
    pub health: GroupHealth,
}

/// The way in which an application was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ApplicationOrigin {
    /// It is an Application of `app.k8s.io`.
    #[default]
    Object,
    /// Objects have the labels `app.kubernetes.io/part-of`, `instance` or `name`.
    Labels,
    /// A way that this version does not know.
    #[serde(other)]
    Unknown,
}

/// The description of an application. All of it is written by people in the cluster, and is not trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ApplicationDescriptor {
    /// The type, such as `wordpress`.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub application_type: String,
    /// The version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// A short description, at most 1,024 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The people who make the application, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maintainers: Vec<ApplicationContact>,
    /// The people who operate it, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<ApplicationContact>,
    /// Words, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keywords: Vec<String>,
    /// Pages about the application, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<ApplicationLink>,
    /// Images, at most 4. Images in `data:` URLs are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub icons: Vec<ApplicationIcon>,
    /// Notes in Markdown, at most 4,096 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub notes: String,
}

/// A person or an organization.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ApplicationContact {
    /// The name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The address of a page: `http` or `https`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// The address for mail.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub email: String,
}

/// A page about an application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ApplicationLink {
    /// The words for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The address: `http` or `https`.
    pub url: String,
}

/// An image of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ApplicationIcon {
    /// The address: `http` or `https`.
    pub src: String,
    /// The size, such as `25x25`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub size: String,
    /// The media type.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub media_type: String,
}

/// A fact for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ApplicationInfo {
    /// The name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The value, at most 512 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// The object that has the value, such as `Secret/db`. It is not read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub from: String,
}

/// A kind of objects of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ApplicationKind {
    /// The API group; empty for the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The kind.
    pub kind: String,
    /// True if the object names it in `componentKinds`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub declared: bool,
    /// The number of members that the caller may see.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub members: u64,
}

/// A member of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ApplicationMember {
    /// The UID.
    pub uid: String,
    /// The API group; empty for the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The namespace; empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    pub name: String,
    /// Its health.
    pub health: HealthState,
}

/// A condition of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ApplicationCondition {
    /// The type, such as `Ready`.
    #[serde(rename = "type")]
    pub condition_type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason, as one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The reason in one sentence, at most 512 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Application {
    /// Returns the application without its members and other details that a list of many clusters does not show.
    #[must_use]
    pub fn into_brief(self) -> Self {
        let mut health = self.health;
        health.attention.truncate(1);
        health.attention.shrink_to_fit();
        let mut brief = Self {
            descriptor: self.descriptor.into_brief(),
            info: Vec::new(),
            kinds: Vec::new(),
            omitted_members: self.omitted_members.saturating_add(self.members.len() as u64),
            members: Vec::new(),
            reported: self.reported.into_iter().take(BRIEF_STATUSES).collect(),
            conditions: Vec::new(),
            health,
            ..self
        };
        if brief.json_size() > MAX_BRIEF {
            brief.descriptor = brief.descriptor.into_version();
        }
        brief
    }

    /// Returns the bytes of the application in a list of JSON.
    pub fn json_size(&self) -> usize {
        json_size(self)
    }
}

fn json_size<T: Serialize>(value: &T) -> usize {
    serde_json::to_string(value).map_or(usize::MAX, |text| text.len() + 1)
}

impl ApplicationDescriptor {
    /// Returns the description without its notes, icons and keywords, and with the first links, owners and maintainers. It has at most
    /// 2 KiB of JSON, or else only the version.
    #[must_use]
    pub fn into_brief(self) -> Self {
        let Self { application_type, version, mut description, maintainers, owners, links, .. } = self;
        description.truncate(description.floor_char_boundary(BRIEF_DESCRIPTION));
        let links = links.into_iter().filter(|link| is_web_address(&link.url)).collect();
        let brief = Self {
            application_type,
            version,
            description,
            maintainers: brief_contacts(maintainers),
            owners: brief_contacts(owners),
            links: first_elements(links),
            ..Self::default()
        };
        if json_size(&brief) > MAX_BRIEF { brief.into_version() } else { brief }
    }

    /// Returns only the version.
    fn into_version(self) -> Self {
        Self { version: self.version, ..Self::default() }
    }
}

/// Returns the first contacts, without addresses that are no pages.
fn brief_contacts(contacts: Vec<ApplicationContact>) -> Vec<ApplicationContact> {
    let mut contacts = first_elements(contacts);
    for contact in &mut contacts {
        if !is_web_address(&contact.url) {
            contact.url = String::new();
        }
    }
    contacts
}

fn first_elements<T>(mut list: Vec<T>) -> Vec<T> {
    list.truncate(BRIEF_ELEMENTS);
    list.shrink_to_fit();
    list
}

/// Returns whether a text is an address that a page may link to: `http` or `https`, with a host and without a user.
pub fn is_web_address(text: &str) -> bool {
    let uri = (text.len() <= MAX_ADDRESS).then(|| text.parse::<Uri>().ok()).flatten();
    uri.is_some_and(|uri| {
        let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
        let has_host = uri.host().is_some_and(|host| !host.is_empty());
        let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
        is_web && has_host && !has_user
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_a_page_has_a_host_and_no_user() {
        for address in ["http://10.0.0.1:8080/a?b=c", "HTTPS://example.com", "https://[2001:db8::1]/"] {
            assert!(is_web_address(address), "{address}");
        }
        for address in [
            "javascript:alert(1)",
            "JavaScript://example.com/%0aalert(1)",
            "data:text/html,<script>",
            "file:///etc/passwd",
            "//example.com",
            "/login",
            "https://",
            "https://bank.example.com@evil.example.com/",
            "https://example.com/\nx",
            " https://example.com",
            &format!("https://example.com/{}", "x".repeat(MAX_ADDRESS)),
        ] {
            assert!(!is_web_address(address), "{address}");
        }
    }

    #[test]
    fn origin_of_a_later_agentk_is_unknown() {
        let origin: ApplicationOrigin = serde_json::from_str("\"annotations\"").unwrap();
        assert_eq!(origin, ApplicationOrigin::Unknown);
    }

    #[test]
    fn brief_application_is_small_also_if_it_is_hostile() {
        let contact = ApplicationContact { name: "a".repeat(500), ..ApplicationContact::default() };
        let link = |url: &str| ApplicationLink { description: String::new(), url: url.to_owned() };
        let page = |url: &str| ApplicationContact { url: url.to_owned(), ..ApplicationContact::default() };
        let application = Application {
            name: "shop".to_owned(),
            descriptor: ApplicationDescriptor {
                version: "1".to_owned(),
                description: "é".repeat(1000),
                links: vec![link("javascript:alert(1)"), link("https://example.com")],
                owners: vec![page("javascript:alert(1)"), page("https://example.com")],
                maintainers: vec![page("javascript:alert(1)")],
                ..ApplicationDescriptor::default()
            },
            members: vec![ApplicationMember::default(); 100],
            omitted_members: u64::MAX,
            ..Application::default()
        };
        let brief = application.clone().into_brief();
        assert_eq!((&*brief.descriptor.links, brief.members.len()), (&[link("https://example.com")][..], 0));
        assert_eq!(
            (brief.descriptor.description.len(), brief.omitted_members),
            (BRIEF_DESCRIPTION, u64::MAX)
        );
        assert_eq!(brief.descriptor.owners, [page(""), page("https://example.com")]);
        assert_eq!(brief.descriptor.maintainers, [page("")]);
        let owners = vec![contact; 10_000];
        let large = Application {
            descriptor: ApplicationDescriptor {
                owners: owners.clone(),
                maintainers: owners,
                ..application.descriptor
            },
            ..application
        };
        let expected = ApplicationDescriptor { version: "1".to_owned(), ..ApplicationDescriptor::default() };
        assert_eq!(large.descriptor.clone().into_brief(), expected, "a description alone has a limit, too");
        let brief = large.into_brief();
        assert_eq!(brief.descriptor, expected, "{} bytes", brief.json_size());
    }
}
