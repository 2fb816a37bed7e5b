//! The services that jobs and users of GitLab may use, with the verbs of each. docs/access.md has the same table.

use access::{AccessAs, ServiceRights};
use proto::{
    ServiceName, ServiceRight, Verb,
    agent_configuration::{Role, UserServiceRight},
};
use request_info::prometheus::SeriesLabels;

use crate::agent_facts::UserServices;

/// The services of every job that may use an agent. `own_sync` adds what depends on the project of the job.
const OF_JOBS: [(&str, &[Verb]); 3] = [
    (ServiceName::KUBERNETES, &[Verb::Use]),
    (ServiceName::GRAPH, &[Verb::Read]),
    (ServiceName::GITOPS, &[Verb::Read]),
];

/// The services of users whose role suffices ([`Role::needed_for`]).
const OF_USERS: [(&str, &[Verb]); 5] = [
    (ServiceName::KUBERNETES, &[Verb::Use]),
    (ServiceName::GRAPH, &[Verb::Read]),
    (ServiceName::GITOPS, &[Verb::Read, Verb::Sync, Verb::Suspend, Verb::Approve]),
    (ServiceName::EVENTS, &[Verb::Read]),
    (ServiceName::ALERTS, &[Verb::Read]),
];

/// Returns the rights of a job. Entries of the configuration for a service replace the default of that service.
pub(super) fn of_job(access_as: &AccessAs, configured: &[ServiceRight]) -> ServiceRights {
    let defaults = defaults(&OF_JOBS, access_as);
    let defaults = defaults.filter(|right| !configured.iter().any(|entry| entry.service == right.service));
    ServiceRights::Only(defaults.chain(configured.iter().cloned()).collect())
}

/// Returns whether a job may sync the manifests of its own project: its entry has no element for `gitops`, which replaces the default.
pub(super) fn syncs_own_project(configured: &[ServiceRight]) -> bool {
    !configured.iter().any(|entry| entry.service.as_str() == ServiceName::GITOPS)
}

/// Returns the rights of a user with this role. Entries of the configuration for a service replace the default of that service. While the
/// configuration is unknown, a user has what GitLab's own kas gives: `kubernetes`, which no entry changes.
pub(super) fn of_user(access_as: &AccessAs, role: Role, configured: &UserServices) -> ServiceRights {
    let UserServices::Known(configured) = configured else {
        let kubernetes = ServiceName::KUBERNETES.parse().expect("it is a service name");
        return ServiceRights::Only(vec![ServiceRight::all(kubernetes)]);
    };
    let defaults = defaults(&OF_USERS, access_as);
    let defaults =
        defaults.filter(|right| !configured.iter().any(|entry| entry.right.service == right.service));
    let configured = configured.iter().filter(|entry| is_decisive(entry, role, configured)).map(|entry| {
        let mut right = entry.right.clone();
        right.verbs.retain(|verb| role >= entry.least_role(*verb));
        right
    });
    let defaults = defaults.map(|mut right| {
        right.verbs.retain(|verb| role >= Role::needed_for(*verb));
        right
    });
    ServiceRights::Only(defaults.chain(configured).collect())
}

/// Returns whether an element counts for a role. If there are labels for a service, only the element with the greatest role does: a user
/// sees the series of this one, and not those of all elements.
fn is_decisive(entry: &UserServiceRight, role: Role, configured: &[UserServiceRight]) -> bool {
    let of_service = || configured.iter().filter(|other| other.right.service == entry.right.service);
    if of_service().all(|other| other.right.labels.is_none()) {
        return true;
    }
    let rank = |entry: &UserServiceRight| (entry.least_role(Verb::Use), entry.right.labels.is_some());
    let reached = of_service().filter(|other| role >= other.least_role(Verb::Use));
    reached.map(rank).max() == Some(rank(entry))
}

/// Returns the number of elements of rights, as a measure of their memory. Each value of a label is an element, however short it is.
pub(super) fn weight<'a>(rights: impl Iterator<Item = &'a ServiceRight>) -> usize {
    /// The bytes that count as an element.
    const ELEMENT: usize = 100;
    let of_labels = |labels: &SeriesLabels| labels.value_count() + labels.size() / ELEMENT;
    rights.map(|right| 1 + right.labels.as_ref().map_or(0, of_labels)).sum()
}

/// Returns the rights of a table.
///
/// RBAC limits an identity, and does not apply to PromQL: through agentk it would read the series of all namespaces. So only a caller that acts as
/// agentk may use `prometheus` by default.
fn defaults<'a>(
    table: &'a [(&'a str, &'a [Verb])],
    access_as: &AccessAs,
) -> impl Iterator<Item = ServiceRight> + use<'a> {
    const PROMETHEUS: (&str, &[Verb]) = (ServiceName::PROMETHEUS, &[Verb::Use]);
    let prometheus = matches!(access_as, AccessAs::Agent).then_some(&PROMETHEUS);
    table.iter().chain(prometheus).map(|(service, verbs)| ServiceRight {
        service: service.parse().expect("it is a service name"),
        verbs: verbs.to_vec(),
        labels: None,
    })
}

#[cfg(test)]
mod tests {
    use access::Caller;
    use http::HeaderMap;
    use proto::AgentId;

    use super::*;

    fn impersonated() -> AccessAs {
        AccessAs::Impersonate { username: "gitlab:user:alice".to_owned(), headers: HeaderMap::new() }
    }

    /// Returns all rights as `service:verb`, of the services that callers can reach.
    fn cells(rights: &ServiceRights) -> Vec<String> {
        let services = ServiceName::OF_CALLERS.into_iter().chain(["events", "prometheus.thanos", "hello"]);
        let services = services.map(|name| name.parse::<ServiceName>().unwrap());
        services
            .flat_map(|service| {
                let verbs = service.verbs().iter().filter(|verb| rights.allow(&service, **verb));
                verbs.map(|verb| format!("{service}:{verb}")).collect::<Vec<_>>()
            })
            .collect()
    }

    /// Each right that is missing here is closed.
    #[test]
    fn defaults_are_those_of_the_table() {
        let reading = ["alerts:read", "gitops:read", "graph:read", "kubernetes:use"];
        let developer = [&reading[..], &["events:read"]].concat();
        let mut maintainer = developer.clone();
        maintainer.splice(2..2, ["gitops:sync", "gitops:suspend", "gitops:approve"]);
        let with_prometheus = |rights: &[&'static str]| {
            let mut rights = rights.to_vec();
            rights.insert(
                rights.iter().position(|right| *right == "kubernetes:use").unwrap() + 1,
                "prometheus:use",
            );
            rights
        };
        assert_eq!(cells(&of_job(&impersonated(), &[])), reading[1..]);
        assert_eq!(cells(&of_job(&AccessAs::Agent, &[])), with_prometheus(&reading[1..]));
        let none = UserServices::Known(Vec::new());
        for (role, expected) in
            [(Role::Developer, &developer), (Role::Maintainer, &maintainer), (Role::Owner, &maintainer)]
        {
            assert_eq!(cells(&of_user(&impersonated(), role, &none)), *expected, "{role:?}");
            assert_eq!(cells(&of_user(&AccessAs::Agent, role, &none)), with_prometheus(expected), "{role:?}");
        }
    }

    #[test]
    fn each_value_of_a_label_weighs_as_an_element() {
        let parse = |text: &str| serde_saphyr::from_str::<Vec<ServiceRight>>(text).unwrap();
        for (text, expected) in [
            ("[graph, prometheus]", 2),
            ("[graph, {service: prometheus, labels: {a: [b, c], d: [e]}}]", 5),
            (&*format!("[{{service: prometheus, labels: {{a: [{}]}}}}]", "b".repeat(199)), 4),
        ] {
            assert_eq!(weight(parse(text).iter()), expected, "{text}");
        }
    }

    #[test]
    fn user_has_the_cluster_alone_while_the_configuration_is_unknown() {
        for role in [Role::Developer, Role::Owner] {
            for access_as in [AccessAs::Agent, impersonated()] {
                assert_eq!(cells(&of_user(&access_as, role, &UserServices::Unknown)), ["kubernetes:use"]);
            }
        }
    }

    #[test]
    fn entry_of_a_job_replaces_the_default_of_its_service() {
        let right = |service: &str, verbs: &[Verb]| {
            ServiceRight::new(service.parse().unwrap(), verbs.to_vec()).unwrap()
        };
        for (configured, expected) in [
            (vec![right("graph", &[])], &["gitops:read", "kubernetes:use"][..]),
            (vec![right("gitops", &[Verb::Sync])], &["gitops:sync", "graph:read", "kubernetes:use"]),
            (
                vec![right("gitops", &[Verb::Read]), right("gitops", &[Verb::Sync])],
                &["gitops:read", "gitops:sync", "graph:read", "kubernetes:use"],
            ),
            (
                vec![right("kubernetes", &[]), right("alerts", &[Verb::Read])],
                &["alerts:read", "gitops:read", "graph:read"],
            ),
            (
                vec![right("prometheus.thanos", &[Verb::Use])],
                &["gitops:read", "graph:read", "kubernetes:use", "prometheus.thanos:use"],
            ),
        ] {
            assert_eq!(cells(&of_job(&impersonated(), &configured)), expected, "{configured:?}");
        }
    }

    /// Returns the values of the label `ns` of the series of each Prometheus, or `*` for all series.
    fn series(rights: &ServiceRights) -> [String; 2] {
        let ServiceRights::Only(list) = rights else { panic!("{rights:?}") };
        let caller = Caller::of_agent("me".to_owned(), AgentId(7), rights.clone(), AccessAs::Agent);
        ["prometheus", "prometheus.thanos"].map(|name| {
            let service = name.parse::<ServiceName>().unwrap();
            let labels = caller.labels(&service).map(|labels| labels.iter().next().unwrap().1.join(","));
            assert!(list.iter().filter(|right| right.service == service).count() < 2, "{list:?}");
            if caller.may(&service, Verb::Use) {
                labels.unwrap_or_else(|| "*".to_owned())
            } else {
                String::new()
            }
        })
    }

    #[test]
    fn labels_give_promql_to_an_identity_and_restrict_agentk() {
        let parse = |text: &str| serde_saphyr::from_str::<Vec<ServiceRight>>(text).unwrap();
        for (configured, as_itself, as_agentk) in [
            ("[]", ["", ""], ["*", ""]),
            ("[{service: prometheus, labels: {ns: [shop, web]}}]", ["shop,web", ""], ["shop,web", ""]),
            ("[{service: prometheus.thanos, labels: {ns: [shop]}}]", ["", "shop"], ["*", "shop"]),
            ("[{service: prometheus, labels: {ns: [shop]}, verbs: []}]", ["", ""], ["", ""]),
            ("[prometheus]", ["*", ""], ["*", ""]),
        ] {
            let configured = parse(configured);
            assert_eq!(series(&of_job(&impersonated(), &configured)), as_itself, "{configured:?}");
            assert_eq!(series(&of_job(&AccessAs::Agent, &configured)), as_agentk, "{configured:?}");
        }
    }

    #[test]
    fn element_with_the_greatest_role_of_the_user_has_its_labels() {
        let parse = |text: &str| serde_saphyr::from_str::<Vec<UserServiceRight>>(text).unwrap();
        for (configured, developer, maintainer, owner) in [
            ("[{service: prometheus, labels: {ns: [shop]}}]", "shop", "shop", "shop"),
            ("[{service: prometheus, labels: {ns: [shop]}, minimum_role: maintainer}]", "", "shop", "shop"),
            (
                "[{service: prometheus, minimum_role: owner}, {service: prometheus, labels: {ns: [shop]}}]",
                "shop",
                "shop",
                "*",
            ),
            (
                "[{service: prometheus, labels: {ns: [shop]}}, {service: prometheus, labels: {ns: [web]}, minimum_role: maintainer}, \
                 {service: prometheus, verbs: [], minimum_role: owner}]",
                "shop",
                "web",
                "",
            ),
        ] {
            let configured = UserServices::Known(parse(configured));
            for access_as in [AccessAs::Agent, impersonated()] {
                let of = |role| series(&of_user(&access_as, role, &configured))[0].clone();
                let found = [of(Role::Developer), of(Role::Maintainer), of(Role::Owner)];
                assert_eq!(found, [developer, maintainer, owner], "{configured:?}");
            }
        }
    }

    #[test]
    fn entry_for_users_asks_for_its_role_or_that_of_the_verb() {
        let right = |service: &str, verbs: &[Verb], minimum_role| UserServiceRight {
            right: ServiceRight::new(service.parse().unwrap(), verbs.to_vec()).unwrap(),
            minimum_role,
        };
        let gitops = |role, configured: &[UserServiceRight]| {
            let rights = of_user(&impersonated(), role, &UserServices::Known(configured.to_vec()));
            let verbs = ["read", "sync", "suspend", "approve"].into_iter();
            let cells = cells(&rights);
            verbs.filter(|verb| cells.contains(&format!("gitops:{verb}"))).collect::<Vec<_>>().join(" ")
        };
        let all = [Verb::Read, Verb::Sync, Verb::Suspend, Verb::Approve];
        for (configured, developer, maintainer, owner) in [
            (right("gitops", &all, None), "read", "read sync suspend approve", "read sync suspend approve"),
            (
                right("gitops", &all, Some(Role::Developer)),
                "read sync suspend approve",
                "read sync suspend approve",
                "read sync suspend approve",
            ),
            (right("gitops", &[Verb::Read], Some(Role::Owner)), "", "", "read"),
            (right("gitops", &[], None), "", "", ""),
        ] {
            let configured = [configured];
            let of = |role| gitops(role, &configured);
            assert_eq!(
                [of(Role::Developer), of(Role::Maintainer), of(Role::Owner)],
                [developer, maintainer, owner],
                "{configured:?}"
            );
        }
        let both = [
            right("gitops", &[Verb::Read], None),
            right("gitops", &[Verb::Sync], Some(Role::Developer)),
            right("gitops", &[Verb::Approve], Some(Role::Owner)),
        ];
        let of = |role| gitops(role, &both);
        assert_eq!(
            [of(Role::Developer), of(Role::Maintainer), of(Role::Owner)],
            ["read sync", "read sync", "read sync approve"]
        );
    }
}
