//! The applications and the components in the clusters of a caller. All texts come from people in the clusters and from agents, apart from
//! the commands that install a component: those are of kas.

use std::{collections::BTreeMap, fmt::Write as _, process::ExitCode};

use clap::Subcommand;
use proto::graph::{Application, ApplicationList, ApplicationOrigin, ComponentList, FeatureState};
use serde::{Deserialize, de::DeserializeOwned};

use super::{ClusterReport, FleetOptions, help, show_clusters};
use crate::{
    CliError,
    table::{Table, printable},
};

/// Show the applications in the clusters of a caller
///
/// Applications are objects of the kind Application of app.k8s.io, and objects with the label app.kubernetes.io/part-of,
/// instance or name. Each cluster is asked with the rights of the caller, who needs the service graph.
#[derive(Debug, clap::Args)]
#[command(after_help = help(APPLICATIONS_EXAMPLES))]
pub struct ApplicationsCommand {
    #[command(subcommand)]
    action: ApplicationsAction,
}

#[derive(Debug, Subcommand)]
enum ApplicationsAction {
    /// List the applications with their versions and their health
    List(FleetOptions),
}

/// Show the programs in clusters, and the features that lack one
///
/// Each cluster is asked with the rights of the caller, who needs the service graph. A component counts as missing only if
/// agentk and the caller may list all workloads of the cluster.
#[derive(Debug, clap::Args)]
#[command(after_help = help(COMPONENTS_EXAMPLES))]
pub struct ComponentsCommand {
    #[command(subcommand)]
    action: ComponentsAction,
}

#[derive(Debug, Subcommand)]
enum ComponentsAction {
    /// List the programs, and the features that lack one with the command that installs it
    List(FleetOptions),
}

const APPLICATIONS_EXAMPLES: &str = "  kas applications list
  kas applications list --group shop --output json";

const COMPONENTS_EXAMPLES: &str = "  kas components list
  kas components list --name production --output json | jq .clusters";

/// The lists of all clusters.
#[derive(Deserialize)]
struct ListReport<T> {
    missing: Option<String>,
    clusters: Vec<ListedAgent<T>>,
}

/// The reason for a cluster whose answer has neither a list nor a reason.
const NOT_UNDERSTOOD: &str = "sent an answer that this kas does not understand";

/// The cluster of an agent, with its list.
#[derive(Deserialize)]
struct ListedAgent<T> {
    name: String,
    missing: Option<String>,
    #[serde(flatten)]
    list: Option<T>,
}

impl ApplicationsCommand {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// kas refuses the request or does not answer.
    pub fn run(self) -> Result<ExitCode, CliError> {
        let ApplicationsAction::List(options) = self.action;
        show_clusters(options, "/agents/applications", applications)
    }
}

impl ComponentsCommand {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// kas refuses the request or does not answer.
    pub fn run(self) -> Result<ExitCode, CliError> {
        let ComponentsAction::List(options) = self.action;
        show_clusters(options, "/agents/components", components)
    }
}

impl<T: DeserializeOwned> ClusterReport for ListReport<T> {
    fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    fn answered(&self) -> Vec<bool> {
        self.clusters.iter().map(|cluster| cluster.reason().is_none()).collect()
    }
}

impl<T> ListReport<T> {
    /// Returns the lists with the names of their agents.
    fn lists(&self) -> impl Iterator<Item = (&str, &T)> {
        self.clusters.iter().filter_map(|cluster| Some((&*cluster.name, cluster.list.as_ref()?)))
    }

    /// Returns whether a cluster has answered. Otherwise there is nothing to say about what runs in the clusters.
    fn has_list(&self) -> bool {
        self.lists().next().is_some()
    }

    /// Returns the reasons why clusters have not answered.
    fn reasons(&self) -> String {
        let missing = self.clusters.iter().filter_map(|cluster| Some((&*cluster.name, cluster.reason()?)));
        lines(missing)
    }
}

impl<T> ListedAgent<T> {
    /// Returns the reason why there is no list. A list that is not read is `None`, too, because its fields are among those of the cluster.
    fn reason(&self) -> Option<&str> {
        self.missing.as_deref().or_else(|| self.list.is_none().then_some(NOT_UNDERSTOOD))
    }
}

fn lines<'a>(reasons: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    reasons.fold(String::new(), |mut text, (agent, reason)| {
        let _ = writeln!(text, "{}: {}", printable(agent), printable(reason));
        text
    })
}

/// Returns the table of applications, and the reasons why some may be missing.
fn applications(report: &ListReport<ApplicationList>) -> String {
    if !report.has_list() {
        return report.reasons();
    }
    let heads =
        ["AGENT", "NAMESPACE", "APPLICATION", "TYPE", "VERSION", "HEALTH", "OBJECTS", "FOUND-BY", "LINK"];
    let mut table = Table::new(&heads);
    for (agent, list) in report.lists() {
        list.applications.iter().for_each(|application| table.row(row(agent, application)));
    }
    let is_empty = report.lists().all(|(_, list)| list.applications.is_empty());
    let mut text = if is_empty { "No cluster has an application.\n".to_owned() } else { table.to_string() };
    for (agent, list) in report.lists().filter(|(_, list)| list.omitted > 0) {
        let _ = writeln!(text, "{}: {} more applications are left out", printable(agent), list.omitted);
    }
    let partial = report.lists().flat_map(|(agent, list)| list.partial.iter().map(move |it| (agent, &**it)));
    text + &lines(partial) + &report.reasons()
}

fn row(agent: &str, application: &Application) -> [String; 9] {
    let Application { namespace, name, origin, descriptor, health, omitted_members, .. } = application;
    let found_by = match origin {
        ApplicationOrigin::Object => "object",
        ApplicationOrigin::Labels => "labels",
        ApplicationOrigin::Unknown => "unknown",
    };
    [
        agent.to_owned(),
        namespace.clone(),
        name.clone(),
        descriptor.application_type.clone(),
        descriptor.version.clone(),
        health.health.to_string(),
        omitted_members.to_string(),
        found_by.to_owned(),
        descriptor.links.first().map(|link| link.url.clone()).unwrap_or_default(),
    ]
}

/// Returns the table of components, that of features that lack one, the commands that install it, and the reasons why some may be missing.
fn components(report: &ListReport<ComponentList>) -> String {
    if !report.has_list() {
        return report.reasons();
    }
    let mut table = Table::new(&["AGENT", "COMPONENT", "VERSION", "HEALTH", "NAMESPACES"]);
    for (agent, list) in report.lists() {
        for component in &list.components {
            table.row([
                agent.to_owned(),
                component.id.clone(),
                component.version.clone().unwrap_or_default(),
                component.health.to_string(),
                component.namespaces.join(","),
            ]);
        }
    }
    let partial = report.lists().flat_map(|(agent, list)| list.partial.iter().map(move |it| (agent, &**it)));
    format!("{table}{}{}{}", features(report), lines(partial), report.reasons())
}

fn features(report: &ListReport<ComponentList>) -> String {
    let mut table = Table::new(&["AGENT", "FEATURE", "NEEDS", "STATE"]);
    let mut commands = BTreeMap::new();
    for (agent, list) in report.lists() {
        for feature in list.features.iter().filter(|feature| feature.state != FeatureState::Present) {
            let state = match feature.state {
                FeatureState::Present => "present",
                FeatureState::Missing if feature.optional => "optional",
                FeatureState::Missing => "missing",
                FeatureState::Unhealthy => "unhealthy",
                FeatureState::Unknown => "unknown",
            };
            let needs = feature.needs.join("|");
            table.row([agent.to_owned(), feature.feature.clone(), needs, state.to_owned()]);
            if feature.state == FeatureState::Missing && !feature.install.command.is_empty() {
                commands.insert(&*feature.feature, &*feature.install.command);
            }
        }
    }
    let mut text = format!("\n{table}");
    for (feature, command) in commands {
        let _ = writeln!(text, "\n# {}\n{}", printable(feature), printable(command));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{super::text_of, *};

    fn report<T: DeserializeOwned>(list: Value) -> ListReport<T> {
        let mut first = json!({"id": 7, "name": "7", "state": "connected", "missing": null});
        first.as_object_mut().unwrap().extend(list.as_object().unwrap().clone());
        let second = json!({"id": 8, "name": "8", "state": "away", "missing": "the agent is not connected"});
        serde_json::from_value(json!({"missing": null, "clusters": [first, second]})).unwrap()
    }

    #[test]
    fn table_of_applications_has_what_is_missing() {
        let descriptor =
            json!({"type": "wordpress", "version": "4.9.4", "links": [{"url": "https://wordpress.org"}]});
        let health = json!({"health": "healthy", "counts": {"healthy": 3}});
        let blog = json!({"namespace": "web", "name": "blog", "origin": "object", "descriptor": descriptor,
            "omitted_members": 3, "health": health});
        let db =
            json!({"namespace": "web", "name": "db", "origin": "labels", "descriptor": {}, "health": health});
        let report: ListReport<ApplicationList> = report(
            json!({"applications": [blog, db], "omitted": 2, "partial": ["Pod: you may not\u{1b}[2J list them"]}),
        );
        let lines = [
            "AGENT  NAMESPACE  APPLICATION  TYPE       VERSION  HEALTH   OBJECTS  FOUND-BY  LINK",
            "7      web        blog         wordpress  4.9.4    healthy  3        object    https://wordpress.org",
            "7      web        db           -          -        healthy  0        labels    -",
            "7: 2 more applications are left out",
            "7: Pod: you may not?[2J list them",
            "8: the agent is not connected",
            "",
        ];
        assert_eq!(applications(&report), lines.join("\n"));
        assert_eq!(report.exit_code(), 2);
    }

    #[test]
    fn features_that_lack_a_component_have_the_command_that_installs_it() {
        let component = json!({"id": "flux", "name": "Flux", "version": "v1.4.0", "namespaces": ["flux-system"],
            "health": "healthy", "evidence": []});
        let feature = |id: &str, state: &str| {
            let install = json!({"command": format!("install {id}"), "docs": "https://example.com"});
            json!({"feature": id, "name": id, "needs": ["a", "b"], "state": state, "install": install})
        };
        let mut hubble = feature("hubble", "missing");
        hubble["optional"] = json!(true);
        hubble["install"]["command"] = json!("");
        let features = [
            feature("flux", "present"),
            hubble,
            feature("prometheus", "missing"),
            feature("x", "of a later agentk"),
        ];
        let report: ListReport<ComponentList> =
            report(json!({"components": [component], "features": features}));
        let lines = [
            "AGENT  COMPONENT  VERSION  HEALTH   NAMESPACES",
            "7      flux       v1.4.0   healthy  flux-system",
            "",
            "AGENT  FEATURE     NEEDS  STATE",
            "7      hubble      a|b    optional",
            "7      prometheus  a|b    missing",
            "7      x           a|b    unknown",
            "",
            "# prometheus",
            "install prometheus",
            "8: the agent is not connected",
            "",
        ];
        assert_eq!(components(&report), lines.join("\n"));
    }

    #[test]
    fn answer_that_is_not_understood_is_reported() {
        let report: ListReport<ApplicationList> = report(json!({"applications": "of a later agentk"}));
        let lines =
            ["7: sent an answer that this kas does not understand", "8: the agent is not connected", ""];
        assert_eq!((applications(&report), report.exit_code()), (lines.join("\n"), 2));
        let alone: ListReport<ApplicationList> = serde_json::from_value(
            json!({"missing": null, "clusters": [{"name": "7", "missing": null, "applications": 3}]}),
        )
        .unwrap();
        assert_eq!(alone.exit_code(), 2);
    }

    #[test]
    fn caller_without_an_agent_gets_an_exit_code() {
        let report: ListReport<ApplicationList> =
            serde_json::from_value(json!({"missing": null, "clusters": []})).unwrap();
        let text = text_of(&report, applications);
        assert_eq!((&*text, report.exit_code()), ("There is no such agent.\n", 1));
        let empty: ListReport<ApplicationList> = self::report(json!({"applications": [], "partial": []}));
        assert!(applications(&empty).starts_with("No cluster has an application.\n8: "));
    }

    #[test]
    fn list_without_an_agent_says_nothing_if_agents_may_be_missing() {
        let report: ListReport<ApplicationList> =
            serde_json::from_value(json!({"missing": "Redis does not answer", "clusters": []})).unwrap();
        assert_eq!((&*text_of(&report, applications), report.exit_code()), ("", 2));
    }
}
