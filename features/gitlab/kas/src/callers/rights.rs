//! The services that jobs and users of GitLab may use, with the verbs of each. docs/access.md has the same table.

use access::{AccessAs, ServiceRights};
use proto::{
    ServiceName, ServiceRight, Verb,
    agent_configuration::{Role, UserServiceRight},
};

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
    let defaults = defaults.map(|right| UserServiceRight { right, minimum_role: None });
    let allowed = defaults.chain(configured.iter().cloned()).map(|entry| {
        let UserServiceRight { right: ServiceRight { service, verbs }, minimum_role } = entry;
        let suffices = |verb: &Verb| role >= minimum_role.unwrap_or_else(|| Role::needed_for(*verb));
        ServiceRight { service, verbs: verbs.into_iter().filter(suffices).collect() }
    });
    ServiceRights::Only(allowed.collect())
}

/// Returns the rights of a table.
///
/// RBAC limits an identity, and does not apply to PromQL: through agentk it would read the series of all namespaces. So only who acts as
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
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

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
