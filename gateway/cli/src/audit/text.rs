//! The lines of `kas audit`, for people. All texts come from the agent, or from GitLab.

use proto::audit::{
    AuditDeployment, CiJob, ClusterEvent, EventObject, JoinedEvent, Stage, SyncOrigin, Through,
};

use crate::table::{is_unprintable, phrase};

/// The widths of the columns but the last one. A longer text moves the rest of its line.
const WIDTHS: [usize; 5] = [20, 36, 7, 28, 44];
/// The digits of a commit that people see.
const SHORT_COMMIT: usize = 12;

/// The first line.
pub(super) const HEADINGS: &str = "\
TIME                  WHO                                   THROUGH  AS                            DID                                           RESULT
";

/// Returns the line of an event: who, through what, as whom in the cluster, did what, with which result.
pub(super) fn line(event: &JoinedEvent) -> String {
    let through = match event.through {
        Through::Kas => "kas",
        Through::Agentk => "agentk",
        Through::Direct => "direct",
        Through::Unknown => "unknown",
    };
    let JoinedEvent { event: of_cluster, .. } = event;
    // To the second.
    let time = of_cluster.time.split('.').next().unwrap_or_default();
    let identity = of_cluster.impersonated_user.as_ref().unwrap_or(&of_cluster.cluster_user);
    let columns =
        [format!("{time}Z"), who(event), through.to_owned(), identity.name.clone(), operation(of_cluster)];
    let mut line = String::new();
    for (text, width) in columns.iter().zip(WIDTHS) {
        line += &format!("{:width$}  ", phrase(text));
    }
    format!("{line}{}\n", phrase(&result(of_cluster)))
}

/// Returns the line about events that nobody can read any more.
pub(super) fn gap(lost_bytes: Option<u64>) -> String {
    match lost_bytes {
        Some(bytes) => format!("… {bytes} bytes of events were removed before they were read\n"),
        None => "… earlier events were removed\n".to_owned(),
    }
}

/// Returns a line of JSON in which characters that a terminal does not show are escaped.
pub(super) fn json(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for c in line.chars() {
        match c {
            // JSON has them between values only.
            '\r' | '\t' => {}
            c if is_unprintable(c) => {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text += &format!("\\u{unit:04x}"));
            }
            c => text.push(c),
        }
    }
    text
}

fn who(event: &JoinedEvent) -> String {
    let Some(request) = &event.request else {
        return match &event.sync {
            Some(SyncOrigin { project, commit }) => format!("manifests of {project} at {}", short(commit)),
            None => event.event.cluster_user.name.clone(),
        };
    };
    let caller = request.user.as_ref().unwrap_or(&request.caller);
    match &request.job {
        Some(job) => of_job(job, event.deployment.as_ref(), caller),
        None => caller.clone(),
    }
}

/// Returns the words for a job. The commit and the merge request of a job with a token of GitLab are those of its deployment.
fn of_job(job: &CiJob, deployment: Option<&AuditDeployment>, caller: &str) -> String {
    let commit = deployment.and_then(|deployment| deployment.commit.as_deref());
    let merge_request = deployment.and_then(|deployment| deployment.merge_request).map(|id| id.to_string());
    let mut text = job.user.as_deref().unwrap_or(caller).to_owned();
    let mut add = |before: &str, value: Option<&str>| {
        if let Some(value) = value {
            text += &format!("{before}{value}");
        }
    };
    add(", job ", job.id.as_deref());
    add(" of ", job.project.as_deref().or(job.project_id.as_deref()));
    add(" for ", job.environment.as_deref());
    add(" at ", job.commit.as_deref().or(commit).map(short));
    add(" of !", merge_request.as_deref());
    text
}

/// Returns the beginning of a commit.
fn short(commit: &str) -> &str {
    commit.get(..SHORT_COMMIT).unwrap_or(commit)
}

fn operation(event: &ClusterEvent) -> String {
    let target = match &event.object {
        Some(EventObject { group, resource, subresource, namespace, name }) => {
            let dot = if group.is_empty() { "" } else { "." };
            let slash = if subresource.is_empty() { "" } else { "/" };
            let place = match (namespace.as_str(), name.as_str()) {
                ("", "") => String::new(),
                ("", name) => format!(" {name}"),
                (namespace, "") => format!(" in {namespace}"),
                (namespace, name) => format!(" {namespace}/{name}"),
            };
            format!("{resource}{dot}{group}{slash}{subresource}{place}")
        }
        None => event.path.clone().unwrap_or_default(),
    };
    let dry_run = if event.dry_run { " (dry run)" } else { "" };
    format!("{} {target}{dry_run}", event.verb)
}

fn result(event: &ClusterEvent) -> String {
    let status = event.status.map(|status| status.to_string()).unwrap_or_default();
    let reason = event.reason.as_deref().unwrap_or_default();
    let stage = match event.stage {
        Stage::Started => "began",
        Stage::Complete => "",
        Stage::Panic => "API server failed",
    };
    let parts = [&*status, reason, stage].into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use proto::audit::{ClusterUser, KasRequest};

    use super::*;

    fn event(verb: &str, object: Option<EventObject>) -> ClusterEvent {
        ClusterEvent {
            time: "2026-01-31T12:00:00.123456Z".to_owned(),
            verb: verb.to_owned(),
            cluster_user: ClusterUser { name: "agentk".to_owned(), ..ClusterUser::default() },
            path: object.is_none().then(|| "/version".to_owned()),
            object,
            status: Some(200),
            ..ClusterEvent::default()
        }
    }

    fn show(through: Through, request: Option<KasRequest>, event: ClusterEvent) -> String {
        let text = line(&JoinedEvent {
            agent: "prod".to_owned(),
            through,
            request,
            deployment: None,
            sync: None,
            event,
        });
        text.split("  ").map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn line_says_who_through_what_as_whom_did_what_with_which_result() {
        let job = CiJob {
            id: Some("302".to_owned()),
            project: Some("shop/web".to_owned()),
            project_id: Some("300".to_owned()),
            user: Some("alice".to_owned()),
            environment: Some("prod".to_owned()),
            commit: Some("714a629c0b401fdce83e847fc9589983fc6f46bc".to_owned()),
            ..CiJob::default()
        };
        let request = |user: Option<&str>, job: Option<CiJob>| {
            let caller = "gitlab:ci_job:302".to_owned();
            Some(KasRequest { caller, user: user.map(str::to_owned), job, ..KasRequest::default() })
        };
        let settings = EventObject {
            resource: "configmaps".to_owned(),
            namespace: "shop".to_owned(),
            name: "settings".to_owned(),
            ..EventObject::default()
        };
        let mut delete = event("delete", Some(settings.clone()));
        delete.impersonated_user =
            Some(ClusterUser { name: "gitlab:ci_job:302".to_owned(), ..ClusterUser::default() });
        assert_eq!(
            show(Through::Kas, request(None, Some(job)), delete),
            "2026-01-31T12:00:00Z | alice, job 302 of shop/web for prod at 714a629c0b40 | kas | gitlab:ci_job:302 | \
             delete configmaps shop/settings | 200"
        );
        let exec = EventObject { group: "apps".to_owned(), subresource: "scale".to_owned(), ..settings };
        let mut started = event("update", Some(exec));
        (started.stage, started.dry_run, started.reason) =
            (Stage::Started, true, Some("Conflict".to_owned()));
        assert_eq!(
            show(Through::Kas, request(Some("oidc:bob"), None), started),
            "2026-01-31T12:00:00Z | oidc:bob | kas | agentk | update configmaps.apps/scale shop/settings (dry run) | 200 Conflict began"
        );
        let mut direct = event("get", None);
        direct.cluster_user.name = "admin\u{1b}[2J".to_owned();
        assert_eq!(
            show(Through::Direct, None, direct),
            "2026-01-31T12:00:00Z | admin?[2J | direct | admin?[2J | get /version | 200"
        );
    }

    #[test]
    fn job_has_the_commit_and_the_merge_request_of_its_deployment() {
        let deployment = AuditDeployment {
            commit: Some("714a629c0b401fdc".to_owned()),
            merge_request: Some(12),
            ..AuditDeployment::default()
        };
        let text = |commit: Option<&str>| {
            let commit = commit.map(str::to_owned);
            let job = CiJob { id: Some("302".to_owned()), commit, ..CiJob::default() };
            of_job(&job, Some(&deployment), "alice")
        };
        assert_eq!(text(None), "alice, job 302 at 714a629c0b40 of !12");
        assert_eq!(text(Some("0123456789abcdef")), "alice, job 302 at 0123456789ab of !12");
    }

    #[test]
    fn json_has_the_same_values_and_only_characters_that_a_terminal_shows() {
        let value = serde_json::json!({"a": "ü\u{7f}\u{9b}31m\u{202e}\u{e0041}"});
        let line = json(&format!("{value}\r"));
        assert_eq!(line, r#"{"a":"ü\u007f\u009b31m\u202e\udb40\udc41"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
    }

    #[test]
    fn manifests_from_git_are_named_with_their_commit() {
        let sync = SyncOrigin { project: "shop/web".to_owned(), commit: "714a629c0b401fdc".to_owned() };
        let event = event("patch", None);
        let event = JoinedEvent {
            agent: "prod".to_owned(),
            through: Through::Agentk,
            request: None,
            deployment: None,
            sync: Some(sync),
            event,
        };
        assert!(line(&event).contains("manifests of shop/web at 714a629c0b40"), "{}", line(&event));
    }

    #[test]
    fn columns_are_below_their_headings() {
        let line = line(&JoinedEvent {
            agent: "prod".to_owned(),
            through: Through::Agentk,
            request: None,
            deployment: None,
            sync: None,
            event: event("get", None),
        });
        for (heading, text) in [("WHO", "agentk"), ("DID", "get /version"), ("RESULT", "200")] {
            let column = HEADINGS.find(heading).unwrap();
            assert!(line[column..].starts_with(text), "{heading}: {line}");
        }
        assert!(gap(Some(7)).contains("7 bytes") && gap(None).contains("removed"));
    }
}
