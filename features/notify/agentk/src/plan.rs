//! The decision what an event does in the cluster. No I/O.

use std::{collections::BTreeSet, fmt};

use proto::{
    agent_configuration::notify::{RECEIVER_KEY, webhook_key},
    notify::ProjectEvent,
};

use super::EventSections;

/// The place in the cluster where an event has an effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// The receiver at a URL.
    Webhook(String),
    /// The object `Repository` in a namespace.
    Repository(String),
    /// The Applications of Argo CD in a namespace.
    ArgoCd(String),
    /// The sources of Flux, with the URL of its notification controller, if agentk calls it.
    Flux(Option<String>),
}

impl Target {
    /// Returns the value of the label `target` of metrics.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Webhook(_) => "webhook",
            Self::Repository(_) => "repository",
            Self::ArgoCd(_) => "argocd",
            Self::Flux(_) => "flux",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Webhook(place)
            | Self::Repository(place)
            | Self::ArgoCd(place)
            | Self::Flux(Some(place)) => {
                write!(f, "{}:{place}", self.kind())
            }
            Self::Flux(None) => f.write_str(self.kind()),
        }
    }
}

/// Returns the targets of an event. `flux` are the projects of the sources of Flux.
pub(super) fn targets(
    sections: &EventSections,
    flux: &BTreeSet<String>,
    event: &ProjectEvent,
) -> BTreeSet<Target> {
    let named = sections.notify.projects.iter().find(|project| project.id == event.project());
    let named = named.is_some_and(|project| project.wants(event.reference()));
    let flux = flux.contains(event.project());
    let mut targets = possible_targets(sections, event.project());
    targets.retain(|target| match target {
        Target::Flux(_) => flux,
        Target::Webhook(_) | Target::Repository(_) | Target::ArgoCd(_) => named,
    });
    targets
}

/// Returns the targets that the events of a project may have.
pub(super) fn possible_targets(sections: &EventSections, project: &str) -> BTreeSet<Target> {
    let mut targets = BTreeSet::new();
    if let Some(project) = sections.notify.projects.iter().find(|entry| entry.id == project) {
        targets.extend(project.webhooks.iter().map(|webhook| Target::Webhook(webhook.url.clone())));
        targets.extend(project.repository.iter().map(|target| Target::Repository(target.namespace.clone())));
        targets.extend(project.argocd.iter().map(|target| Target::ArgoCd(target.namespace.clone())));
    }
    targets.extend(sections.flux.iter().map(|section| Target::Flux(section.receiver().map(str::to_owned))));
    targets
}

/// Removes the webhooks that the policy refuses. Returns their keys, each with the reason. `check` takes a URL, and whether requests to
/// it are signed.
pub(super) fn remove_refused(
    sections: &mut EventSections,
    check: impl Fn(&str, bool) -> Result<(), String>,
) -> Vec<(String, String)> {
    let mut refused = Vec::new();
    for (index, project) in sections.notify.projects.iter_mut().enumerate() {
        let mut number = 0;
        project.webhooks.retain(|webhook| {
            let result = check(&webhook.url, true);
            number += 1;
            result.map_err(|what| refused.push((webhook_key(index, number - 1), what))).is_ok()
        });
    }
    let receiver = sections.flux.as_ref().and_then(|flux| flux.receiver());
    if let Some(Err(what)) = receiver.map(|url| check(&receiver_prefix(url), false)) {
        refused.push((RECEIVER_KEY.to_owned(), what));
        sections.flux = None;
    }
    refused
}

/// Returns the beginning of the URLs of Flux' notification controller, which ends with a slash.
pub(super) fn receiver_prefix(url: &str) -> String {
    format!("{}/", url.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proto::{agent_configuration::AgentConfiguration, notify::ProjectEventFields};

    use super::*;

    fn sections(text: &str) -> EventSections {
        let parsed = AgentConfiguration::parse(std::path::Path::new("c.yaml"), text).unwrap();
        EventSections { notify: parsed.notify.unwrap_or_default(), flux: parsed.flux }
    }

    fn event(project: &str, reference: Option<&str>) -> ProjectEvent {
        let fields = ProjectEventFields {
            id: "e-1".to_owned(),
            sequence: 1,
            project: project.to_owned(),
            reference: reference.map(str::to_owned),
            before: None,
            after: None,
            urls: Vec::new(),
            time: SystemTime::UNIX_EPOCH,
        };
        fields.try_into().unwrap()
    }

    fn shown(sections: &EventSections, flux: &[&str], event: &ProjectEvent) -> Vec<String> {
        let flux = flux.iter().copied().map(str::to_owned).collect();
        targets(sections, &flux, event).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn event_has_the_targets_of_its_project_and_reference() {
        let sections = sections(
            "notify:\n  projects:\n  - id: a/b\n    refs: [refs/heads/main]\n    webhooks: [{url: 'http://x/'}]\n    \
             repository: {namespace: shop}\n    argocd: {}\n  - {id: c/d, poll: 1m, repository: {namespace: shop}}\nflux: {}\n",
        );
        let main = Some("refs/heads/main");
        assert_eq!(
            shown(&sections, &[], &event("a/b", main)),
            ["webhook:http://x/", "repository:shop", "argocd:argocd"]
        );
        assert!(shown(&sections, &[], &event("a/b", Some("refs/heads/other"))).is_empty());
        assert!(shown(&sections, &[], &event("x/y", main)).is_empty());
        assert_eq!(shown(&sections, &["a/b"], &event("a/b", Some("refs/heads/other"))), ["flux"]);
        assert!(shown(&sections, &[], &event("c/d", None)).is_empty(), "the look of kas names the commit");
        assert_eq!(shown(&sections, &[], &event("c/d", main)), ["repository:shop"]);
    }

    #[test]
    fn webhook_that_the_policy_refuses_is_left_out_and_named() {
        let mut sections = sections(
            "notify: {projects: [{id: a/b, webhooks: [{url: 'http://bad/'}, {url: 'http://good/'}, {url: 'http://bad/x'}]}]}\n\
             flux: {webhook_receiver_url: 'http://bad'}\n",
        );
        let refused = remove_refused(&mut sections, |url, signed| {
            if url.starts_with("http://bad/") { Err(format!("no {url} {signed}")) } else { Ok(()) }
        });
        let refused: Vec<String> = refused.into_iter().map(|(key, what)| format!("{key}: {what}")).collect();
        assert_eq!(
            refused,
            [
                "notify.projects[0].webhooks[0].url: no http://bad/ true",
                "notify.projects[0].webhooks[2].url: no http://bad/x true",
                "flux.webhook_receiver_url: no http://bad/ false",
            ]
        );
        assert_eq!(shown(&sections, &["a/b"], &event("a/b", None)), ["webhook:http://good/"]);
    }
}
