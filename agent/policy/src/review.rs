//! Decisions about the writes that the API server reviews, by the same rules as about the requests of kas.
//!
//! The API server reviews every write with the credential of agentk, also one that does not pass agentk. It does not review reads.

use std::{borrow::Cow, iter};

use kube_cluster::LEASE_PREFIX;
use proto::ServiceName;
use request_info::{RequestInfo, RequestTarget, ResourceTarget};

use super::{
    NamespaceLabels, Policy, PolicyDecision,
    admission_review::{AdmissionRequest, Operation},
    rule::EffectiveUser,
};

/// The groups that the API server adds to a user by itself, and that no request names.
pub(crate) const ADDED_GROUPS: [&str; 3] =
    ["system:authenticated", "system:serviceaccounts", "system:serviceaccounts:"];

/// The names of the inventories of GitOps.
pub(crate) const INVENTORY_PREFIX: &str = "gitops-";
/// The questions of a user about itself, which change nothing. agentk asks them as the caller.
pub(crate) const OWN_QUESTIONS: [(&str, &str); 3] = [
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authentication.k8s.io", "selfsubjectreviews"),
];

/// The users whose writes are judged.
#[derive(Clone, Debug)]
pub struct JudgedUsers {
    /// The namespace of agentk and of its service account.
    pub namespace: String,
    /// The name of the service account.
    pub service_account: String,
    /// The beginnings of the names of users that agentk impersonates.
    pub prefixes: Vec<String>,
    /// The writes of the features of agentk.
    pub features: FeatureWrites,
}

/// The writes of features that a policy must know.
#[derive(Clone, Debug, Default)]
pub struct FeatureWrites {
    /// The services whose requests may be writes to the cluster.
    pub services: Vec<&'static str>,
    /// The ends of the names of their Leases.
    pub lease_suffixes: Vec<&'static str>,
}

/// The user of a reviewed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// agentk, or somebody with its credential.
    Agentk,
    /// A user that agentk impersonates.
    Impersonated,
    /// Anybody else.
    Other,
}

/// The result of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Review {
    /// The policy does not judge the write: it is of another user, for an object that agentk keeps for itself, or a question.
    NotJudged,
    /// The rules have decided.
    Decided(PolicyDecision),
    /// The rules allow the write, and the object rule with this index refuses the object.
    Object(usize),
}

impl JudgedUsers {
    /// Returns the name of agentk's user.
    pub fn username(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.service_account)
    }

    /// Returns the services whose requests may be writes to the cluster.
    pub(crate) fn writing_services(&self) -> impl Iterator<Item = &'static str> {
        iter::once(ServiceName::KUBERNETES).chain(self.features.services.iter().copied())
    }

    fn writer(&self, username: &str) -> Writer {
        if username == self.username() {
            return Writer::Agentk;
        }
        if self.prefixes.iter().any(|prefix| username.starts_with(prefix)) {
            Writer::Impersonated
        } else {
            Writer::Other
        }
    }

    /// Returns whether agentk itself writes such objects, whatever its policy is: the Leases, the inventories with the statuses, and the
    /// events of GitOps. The policy is a ConfigMap, too, and not among them.
    fn is_own_object(&self, request: &AdmissionRequest) -> bool {
        let resource = request.requested();
        let (name, is_here) = (&request.name, request.namespace == self.namespace);
        match (&*resource.group, &*resource.resource) {
            ("coordination.k8s.io", "leases") => {
                let has_suffix = |suffix: &&str| name.ends_with(*suffix);
                is_here
                    && name.starts_with(LEASE_PREFIX)
                    && self.features.lease_suffixes.iter().any(has_suffix)
            }
            ("", "configmaps") => is_here && name.starts_with(INVENTORY_PREFIX),
            ("" | "events.k8s.io", "events") => request.operation != Operation::Delete,
            _ => false,
        }
    }
}

impl Policy {
    /// Decides about a write that the API server reviews.
    ///
    /// The services share the credential, so a write passes if the policy allows it to one of them. It passes if the policy allows it
    /// with one of the verbs that it may have.
    pub fn review(
        &self,
        users: &JudgedUsers,
        request: &AdmissionRequest,
        labels: &NamespaceLabels,
    ) -> Review {
        let resource = request.requested();
        let is_question = OWN_QUESTIONS.contains(&(&resource.group, &resource.resource));
        let user = match users.writer(&request.user_info.username) {
            Writer::Other => return Review::NotJudged,
            Writer::Agentk | Writer::Impersonated if is_question => return Review::NotJudged,
            Writer::Agentk if users.is_own_object(request) => return Review::NotJudged,
            Writer::Agentk => EffectiveUser::Agentk,
            Writer::Impersonated => EffectiveUser::Impersonated {
                user: &request.user_info.username,
                groups: named_groups(&request.user_info.groups),
            },
        };
        let decisions = users
            .writing_services()
            .flat_map(|service| verbs(request).iter().map(move |verb| (service, info(request, verb))));
        let mut decisions =
            decisions.map(|(service, info)| self.decide(|rule| rule.matches(service, &info, &user, labels)));
        let first = decisions.next().expect("there are services, and a request has a verb");
        let decision =
            [first].into_iter().chain(decisions).find(|decision| decision.allowed).unwrap_or(first);
        match self.objects.iter().position(|rule| decision.allowed && rule.refuses(request, labels)) {
            Some(index) => Review::Object(index),
            None => Review::Decided(decision),
        }
    }
}

impl AdmissionRequest {
    /// Returns a description of the write for messages.
    pub fn describe(&self) -> String {
        let info = info(self, verbs(self)[0]);
        format!("{info} as {:?}", self.user_info.username)
    }
}

/// Returns the verbs that a request may have. The API server does not say whether a patch or an update changes an object, nor whether one
/// of them creates it, since it gives both the same options.
fn verbs(request: &AdmissionRequest) -> &'static [&'static str] {
    match request.operation {
        Operation::Connect => &["get", "create"],
        Operation::Delete if request.name.is_empty() => &["deletecollection"],
        Operation::Delete => &["delete"],
        Operation::Update => &["update", "patch"],
        Operation::Create => &["create", "patch", "update"],
    }
}

/// Returns what agentk reads in the same request.
fn info<'a>(request: &'a AdmissionRequest, verb: &'static str) -> RequestInfo<'a> {
    let resource = request.requested();
    let filled = |text: &'a str| (!text.is_empty()).then_some(text);
    // The path of a create has no name, and that of a new namespace no namespace.
    let is_new = verb == "create" && request.sub_resource.is_empty();
    let is_namespace = resource.group.is_empty() && resource.resource == "namespaces";
    RequestInfo {
        verb,
        target: RequestTarget::Resource(ResourceTarget {
            group: &resource.group,
            resource: &resource.resource,
            subresource: filled(&request.sub_resource),
            namespace: filled(&request.namespace).filter(|_| !(is_new && is_namespace)),
            name: filled(&request.name).filter(|_| !is_new).map(Cow::Borrowed),
        }),
    }
}

/// Returns the groups that a request with impersonation names.
fn named_groups(groups: &[String]) -> Vec<&str> {
    let is_added = |group: &str| {
        ADDED_GROUPS
            .iter()
            .any(|added| if added.ends_with(':') { group.starts_with(added) } else { group == *added })
    };
    groups.iter().map(String::as_str).filter(|group| !is_added(group)).collect()
}
