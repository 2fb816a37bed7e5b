//! The events that a reader asks for by facts that kas knows, and agentk does not.

use std::ops::RangeInclusive;

use access::RequestError;
use http::Uri;
use proto::audit::{CiJob, JoinedEvent};
use url::form_urlencoded;

use super::environment_slug::slug_of;

/// The parameters that only kas knows. An agentk refuses them, as it refuses all that it does not know.
const OWN: [&str; 3] = ["project", "environment", "commit"];
/// The digits of a commit.
const COMMIT: RangeInclusive<usize> = 7..=64;

/// Selects events. An absent field selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EventSelection {
    /// A caller, or a user of the cluster.
    user: Option<String>,
    /// The full path of the project of a job, or of manifests.
    project: Option<String>,
    /// The environment of a job.
    environment: Option<EnvironmentFilter>,
    /// The first digits of the commit of a job, or of manifests.
    commit: Option<String>,
}

/// The environment that a reader asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EnvironmentFilter {
    /// The name or the slug of the environment, as the reader has written it.
    text: String,
    /// The slug of the environment, if the text is its name.
    slug: String,
}

impl EventSelection {
    /// Reads the query of a request.
    ///
    /// # Errors
    ///
    /// The commit is none. agentk refuses what is wrong in its own parameters.
    pub(super) fn parse(query: &str) -> Result<Self, RequestError> {
        let mut selection = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()).filter(|(_, value)| !value.is_empty()) {
            let value = value.into_owned();
            match &*key {
                "user" => selection.user = Some(value),
                "project" => selection.project = Some(value),
                "environment" => selection.environment = Some(EnvironmentFilter::new(value)),
                "commit" => selection.commit = Some(value),
                _ => {}
            }
        }
        match &mut selection.commit {
            Some(commit) if !is_commit(commit) => {
                Err(RequestError::bad_request("commit: write 7 to 64 hexadecimal digits"))
            }
            Some(commit) => {
                commit.make_ascii_lowercase();
                Ok(selection)
            }
            None => Ok(selection),
        }
    }

    /// Returns whether an event is selected.
    pub(super) fn selects(&self, event: &JoinedEvent) -> bool {
        let all = |wanted: &Option<String>, is: fn(&JoinedEvent, &str) -> bool| {
            wanted.as_deref().is_none_or(|wanted| is(event, wanted))
        };
        all(&self.user, is_of_user)
            && all(&self.project, is_of_project)
            && self.environment.as_ref().is_none_or(|environment| environment.is_of(event))
            && all(&self.commit, is_of_commit)
    }
}

impl EnvironmentFilter {
    fn new(text: String) -> Self {
        Self { slug: slug_of(&text), text }
    }

    /// Returns whether an event is of a job that deploys to the environment. GitLab names the environment of a job token by its slug, and
    /// that of an OIDC token by its name.
    fn is_of(&self, event: &JoinedEvent) -> bool {
        let environments = [
            job(event).and_then(|job| job.environment.as_deref()),
            event.deployment.as_ref().map(|deployment| &*deployment.environment),
        ];
        let is_it = |known: &str| known == self.text || known == self.slug || slug_of(known) == self.text;
        environments.into_iter().flatten().any(is_it)
    }
}

/// Returns whether an event is of a user, as kas or the cluster knows it.
fn is_of_user(event: &JoinedEvent, user: &str) -> bool {
    let request = event.request.as_ref();
    let names = [
        request.map(|request| &*request.caller),
        request.and_then(|request| request.caller.strip_prefix("gitlab:user:")),
        request.and_then(|request| request.user.as_deref()),
        job(event).and_then(|job| job.user.as_deref()),
        Some(&*event.event.cluster_user.name),
        event.event.impersonated_user.as_ref().map(|user| &*user.name),
    ];
    names.contains(&Some(user))
}

/// Returns whether an event is of a job of a project, or of its manifests. GitLab's paths have no case.
fn is_of_project(event: &JoinedEvent, project: &str) -> bool {
    let projects = [
        job(event).and_then(|job| job.project.as_deref()),
        event.deployment.as_ref().and_then(|deployment| deployment.project.as_deref()),
        event.sync.as_ref().map(|sync| &*sync.project),
    ];
    projects.into_iter().flatten().any(|known| known.eq_ignore_ascii_case(project))
}

fn is_of_commit(event: &JoinedEvent, commit: &str) -> bool {
    let commits = [
        job(event).and_then(|job| job.commit.as_deref()),
        event.deployment.as_ref().and_then(|deployment| deployment.commit.as_deref()),
        event.sync.as_ref().map(|sync| &*sync.commit),
    ];
    commits.into_iter().flatten().any(|known| known.starts_with(commit))
}

fn is_commit(text: &str) -> bool {
    COMMIT.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns whether a query has a parameter that the agent does not know.
pub(super) fn has_own(query: &str) -> bool {
    query.split('&').any(is_own)
}

/// Returns the URI that the agent receives.
pub(super) fn uri_of_agent(uri: Uri) -> Uri {
    let query = uri.query().unwrap_or_default();
    let rest: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty() && !is_own(pair)).collect();
    let mark = if rest.is_empty() { "" } else { "?" };
    let text = format!("{}{mark}{}", uri.path(), rest.join("&"));
    let mut parts = uri.into_parts();
    parts.path_and_query = Some(text.parse().expect("parts of a path with a query"));
    Uri::from_parts(parts).expect("the other parts are as before")
}

fn is_own(pair: &str) -> bool {
    form_urlencoded::parse(pair.as_bytes()).next().is_some_and(|(key, _)| OWN.contains(&&*key))
}

fn job(event: &JoinedEvent) -> Option<&CiJob> {
    event.request.as_ref()?.job.as_ref()
}

#[cfg(test)]
mod tests {
    use proto::audit::{AuditDeployment, ClusterEvent, ClusterUser, KasRequest, SyncOrigin, Through};

    use super::*;

    fn joined(request: Option<KasRequest>) -> JoinedEvent {
        let user = |name: &str| ClusterUser { name: name.to_owned(), ..ClusterUser::default() };
        let event = ClusterEvent {
            cluster_user: user("agentk"),
            impersonated_user: Some(user("impersonated")),
            ..ClusterEvent::default()
        };
        JoinedEvent {
            agent: "prod".to_owned(),
            through: Through::Kas,
            request,
            deployment: None,
            sync: None,
            event,
        }
    }

    fn request(caller: &str, job: CiJob) -> KasRequest {
        let user = Some("oidc:bob".to_owned());
        KasRequest { caller: caller.to_owned(), user, job: Some(job), ..KasRequest::default() }
    }

    fn is_selected(event: &JoinedEvent, query: &str) -> bool {
        EventSelection::parse(query).unwrap().selects(event)
    }

    #[test]
    fn user_is_the_caller_its_user_that_of_its_job_or_one_of_the_cluster() {
        let job = CiJob { user: Some("alice".to_owned()), ..CiJob::default() };
        let event = joined(Some(request("gitlab:user:carol", job)));
        for user in ["gitlab:user:carol", "carol", "oidc:bob", "alice", "agentk", "impersonated", ""] {
            assert!(is_selected(&event, &format!("user={user}")), "{user}");
        }
        for user in ["bob", "gitlab:user:", "admin"] {
            assert!(!is_selected(&event, &format!("user={user}")), "{user}");
        }
    }

    #[test]
    fn project_environment_and_commit_are_those_of_the_job_its_deployment_or_the_manifests() {
        let text = |text: &str| Some(text.to_owned());
        let job = CiJob {
            project: text("shop/web"),
            environment: text("live"),
            commit: text("0123456789abcdef"),
            ..CiJob::default()
        };
        let of_job = joined(Some(request("ci", job)));
        let deployment = AuditDeployment {
            project: text("Shop/Web"),
            environment: "live".to_owned(),
            commit: text("0123456789abcdef"),
            ..AuditDeployment::default()
        };
        let of_deployment = JoinedEvent { deployment: Some(deployment), ..joined(None) };
        let sync = SyncOrigin { project: "shop/web".to_owned(), commit: "0123456789abcdef".to_owned() };
        let of_manifests = JoinedEvent { sync: Some(sync), ..joined(None) };
        for (query, expected) in [
            ("project=shop%2Fweb", [true, true, true]),
            ("project=shop/we", [false, false, false]),
            ("environment=live", [true, true, false]),
            ("environment=dev", [false, false, false]),
            ("commit=0123456", [true, true, true]),
            ("commit=0123456789ABCDEF", [true, true, true]),
            ("commit=1123456", [false, false, false]),
            ("commit=0123456789abcdef0", [false, false, false]),
            ("project=shop/web&environment=live&commit=0123456", [true, true, false]),
            ("project=shop/api&environment=live", [false, false, false]),
            ("project=&environment=&commit=&verb=delete", [true, true, true]),
        ] {
            let selected = [&of_job, &of_deployment, &of_manifests].map(|event| is_selected(event, query));
            assert_eq!(selected, expected, "{query}");
        }
        assert!(!is_selected(&joined(None), "project=shop/web"));
    }

    #[test]
    fn environment_is_its_name_or_its_slug() {
        let slug = slug_of("review/feature");
        for known in ["review/feature", &slug] {
            let job = CiJob { environment: Some(known.to_owned()), ..CiJob::default() };
            let event = joined(Some(request("ci", job)));
            for (wanted, expected) in
                [("review%2Ffeature", true), (&*slug, true), ("review-feature", false), ("feature", false)]
            {
                assert_eq!(
                    is_selected(&event, &format!("environment={wanted}")),
                    expected,
                    "{known} {wanted}"
                );
            }
        }
    }

    #[test]
    fn commit_that_selects_nothing_by_mistake_is_refused() {
        for commit in ["012345", "v1.2.345", &"0".repeat(65)] {
            let error = EventSelection::parse(&format!("commit={commit}")).unwrap_err();
            assert_eq!(error.message, "commit: write 7 to 64 hexadecimal digits", "{commit}");
        }
    }

    #[test]
    fn agent_receives_the_parameters_that_it_knows() {
        for (query, expected) in [
            ("", "/v1/events"),
            ("?limit=7&user=a%20b", "/v1/events?limit=7&user=a%20b"),
            (
                "?commit=0123456&limit=7&project=a%2Fb&environment=live&verb=delete",
                "/v1/events?limit=7&verb=delete",
            ),
            ("?pr%6Fject=a", "/v1/events"),
            ("?projects=a", "/v1/events?projects=a"),
        ] {
            let uri = format!("/v1/events{query}").parse().unwrap();
            assert_eq!(uri_of_agent(uri).to_string(), expected);
            assert_eq!(
                has_own(query.trim_start_matches('?')),
                expected != format!("/v1/events{query}"),
                "{query}"
            );
        }
    }
}
