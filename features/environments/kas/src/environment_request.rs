//! The query of a list of environments in an API, and its pages.

use environments_wire::{Environment, EnvironmentQuery, EnvironmentSelection, NamePattern, Tier};
use kas_core::api::{
    QueryError,
    query::{GROUP, MAX_LENGTH, decoded, is_group, limit, set_once},
};
use proto::LabelSelector;

const KNOWN: &str = "project, slug, name, tier, group, agent, namespace, label, health, deployments, discovered, limit and continue";
/// The longest pattern of names in bytes: that of a name in GitLab.
const MAX_PATTERN: usize = 255;

/// The query of a list of environments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvironmentRequest {
    /// Selects environments.
    pub(crate) query: EnvironmentQuery,
    /// The health is asked for.
    pub(crate) with_health: bool,
    /// The last deployments are asked for.
    pub(crate) with_deployments: bool,
    /// The environments in clusters are asked for, too.
    pub(crate) with_discovered: bool,
    /// The page.
    page: PageRequest,
}

/// The part of a list that is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PageRequest {
    /// The most environments. Without a number, the list has one page.
    limit: Option<usize>,
    /// The project and the slug of the last environment of the page before.
    after: Option<(String, String)>,
}

/// The parameters of a query while they are read.
#[derive(Default)]
struct Parameters {
    query: EnvironmentQuery,
    labels: Option<LabelSelector>,
    health: Option<bool>,
    deployments: Option<bool>,
    discovered: Option<bool>,
    page: PageRequest,
}

/// Parses the query of environments.
pub fn parse_environments(text: &str) -> Result<EnvironmentRequest, QueryError> {
    if text.len() > MAX_LENGTH {
        return Err(QueryError::TooLong);
    }
    let mut parameters = Parameters::default();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        parameters.set(key, &decoded("query", value)?)?;
    }
    let Parameters { mut query, labels, health, deployments, discovered, page } = parameters;
    query.labels = labels.unwrap_or_default();
    let (with_health, with_deployments) = (health.unwrap_or_default(), deployments.unwrap_or_default());
    let with_discovered = discovered.unwrap_or_default();
    Ok(EnvironmentRequest { query, with_health, with_deployments, with_discovered, page })
}

impl Parameters {
    fn set(&mut self, key: &str, value: &str) -> Result<(), QueryError> {
        let (query, own) = (&mut self.query, value.to_owned());
        match key {
            "project" | "slug" | "name" | "tier" | "group" | "agent" | "namespace" | "label" | "health"
            | "deployments" | "discovered" | "limit" | "continue"
                if value.is_empty() =>
            {
                Ok(())
            }
            "project" => set_once("project", &mut query.project, own),
            "slug" => set_once("slug", &mut query.slug, own),
            "name" => set_once("name", &mut query.name, name(value)?),
            "tier" => set_once("tier", &mut query.tier, tier(value)?),
            "group" => set_once("group", &mut query.group, group(value)?),
            "agent" => set_once("agent", &mut query.agent, own),
            "namespace" => set_once("namespace", &mut query.namespace, own),
            "label" => set_once("label", &mut self.labels, labels(value)?),
            "health" => set_once("health", &mut self.health, boolean("health", value)?),
            "deployments" => set_once("deployments", &mut self.deployments, boolean("deployments", value)?),
            "discovered" => set_once("discovered", &mut self.discovered, boolean("discovered", value)?),
            "limit" => set_once("limit", &mut self.page.limit, limit(value)?),
            "continue" => set_once("continue", &mut self.page.after, after(value)?),
            _ => Err(QueryError::Unknown(cut(key), KNOWN)),
        }
    }
}

impl EnvironmentRequest {
    /// Returns the query for the sources. Other environments name the projects of those in clusters, and replace some of them, so that only
    /// the project, the group and the slug in a project select then. The whole query selects among all at the end.
    pub(crate) fn of_sources(&self) -> EnvironmentQuery {
        if !self.with_discovered {
            return self.query.clone();
        }
        let EnvironmentQuery { project, group, slug, .. } = &self.query;
        // GitLab's list of a large project is cut, and the slug finds the environments behind it.
        let slug = project.as_ref().and(slug.as_ref());
        EnvironmentQuery {
            project: project.clone(),
            group: group.clone(),
            slug: slug.cloned(),
            ..EnvironmentQuery::default()
        }
    }

    /// Returns the page of a list, and the value of `continue` for the next one. Pages are in order of project and slug.
    pub(crate) fn page(&self, mut selection: EnvironmentSelection) -> (EnvironmentSelection, Option<String>) {
        let PageRequest { limit, after } = &self.page;
        let environments = &mut selection.environments;
        if limit.is_some() || after.is_some() {
            environments.sort_by_cached_key(place);
        }
        if let Some(after) = after {
            environments.retain(|environment| place(environment) > *after);
        }
        let limit = limit.unwrap_or(usize::MAX);
        let has_more = environments.len() > limit;
        environments.truncate(limit);
        let last = environments.last().filter(|_| has_more);
        let next = last.map(|Environment { project, slug, .. }| format!("{project}:{slug}"));
        (selection, next)
    }
}

fn place(environment: &Environment) -> (String, String) {
    (environment.project.clone(), environment.slug.clone())
}

fn name(text: &str) -> Result<NamePattern, QueryError> {
    let pattern = text.parse().ok().filter(|_| text.len() <= MAX_PATTERN);
    let expected = "a name or a pattern of names, like production/us-*, of at most 255 bytes";
    pattern.ok_or_else(|| QueryError::Value("name", cut(text), expected))
}

fn group(text: &str) -> Result<String, QueryError> {
    if is_group(text) { Ok(text.to_owned()) } else { Err(QueryError::Value("group", cut(text), GROUP)) }
}

fn labels(text: &str) -> Result<LabelSelector, QueryError> {
    let expected = "a selector of labels: key=value, key!=value, key in (a,b), key notin (a,b), key or !key";
    text.parse().map_err(|_| QueryError::Value("label", cut(text), expected))
}

fn after(text: &str) -> Result<(String, String), QueryError> {
    // The path of a project may have a colon, and a slug has none.
    let place = text.rsplit_once(':').map(|(project, slug)| (project.to_owned(), slug.to_owned()));
    place.ok_or_else(|| QueryError::Value("continue", cut(text), "the value of a page"))
}

fn boolean(key: &'static str, value: &str) -> Result<bool, QueryError> {
    value.parse().map_err(|_| QueryError::Value(key, cut(value), "true or false"))
}

/// Parses the name of a tier.
pub(crate) fn tier(name: &str) -> Result<Tier, QueryError> {
    let tier = Tier::ALL.into_iter().find(|(known, _)| *known == name);
    let expected = "production, staging, testing, development or other";
    tier.map(|(_, tier)| tier).ok_or_else(|| QueryError::Value("tier", cut(name), expected))
}

/// Returns the part of a text that an error has.
fn cut(text: &str) -> String {
    text.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_parsed_and_decoded() {
        let query = "project=g%2Fapp&slug=s&name=production%2Fus-*&tier=staging&group=g&agent=7&namespace=n&label=app%3Dweb";
        let request = parse_environments(query).unwrap();
        let text = |text: &str| Some(text.to_owned());
        let query = EnvironmentQuery {
            project: text("g/app"),
            slug: text("s"),
            name: Some("production/us-*".parse().unwrap()),
            tier: Some(Tier::Staging),
            group: text("g"),
            agent: text("7"),
            namespace: text("n"),
            labels: "app=web".parse().unwrap(),
        };
        assert_eq!(request, EnvironmentRequest { query, ..EnvironmentRequest::default() });
        assert_eq!(parse_environments("project=g/app&").unwrap().query.project, text("g/app"));
        assert_eq!(parse_environments("").unwrap(), EnvironmentRequest::default());
        let empty = KNOWN.replace(" and ", ", ").split(", ").map(|key| format!("{key}=")).collect::<Vec<_>>();
        assert_eq!(parse_environments(&empty.join("&")).unwrap(), EnvironmentRequest::default());
        assert_eq!(parse_environments("project=my+group%2Fapp").unwrap().query.project, text("my group/app"));
        let parts = |query: &str| {
            let EnvironmentRequest { with_health, with_deployments, .. } = parse_environments(query).unwrap();
            [with_health, with_deployments]
        };
        assert_eq!(parts("health=true"), [true, false]);
        assert_eq!(parts("deployments=true&health=false"), [false, true]);
    }

    #[test]
    fn invalid_query_is_refused_with_the_name_of_the_parameter() {
        let long = format!("name={}", "x".repeat(MAX_PATTERN + 1));
        for (query, expected) in [
            (
                "names=x",
                "\"names\" is not a parameter: the parameters are project, slug, name, tier, group, agent",
            ),
            ("name=production/[", "name: \"production/[\" is not a name or a pattern of names"),
            (&long, "is not a name or a pattern of names"),
            ("label=a%20b", "label: \"a b\" is not a selector of labels: key=value"),
            ("label=a&label=b", "label is given twice"),
            ("health=1", "health: \"1\" is not true or false"),
            ("health=true&health=true", "health is given twice"),
            ("tier=prod", "tier: \"prod\" is not production, staging"),
            ("group=123", "group: \"123\" is not the path of a group"),
            ("group=shop/..", "group: \"shop/..\" is not the path of a group"),
            ("slug=a&slug=b", "slug is given twice"),
            ("limit=0", "limit: \"0\" is not a number between 1 and 500"),
            ("continue=shop", "continue: \"shop\" is not the value of a page"),
            ("project=%ff", "query: \"%ff\" is not UTF-8"),
            (&"&".repeat(9000), "longer than 8192 bytes"),
        ] {
            let error = parse_environments(query).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn sources_name_the_projects_of_environments_in_clusters() {
        let of_sources = |query: &str| parse_environments(query).unwrap().of_sources();
        let filters = "group=shop&tier=production&agent=7&slug=live";
        assert_eq!(of_sources(filters).tier, Some(Tier::Production));
        let group = EnvironmentQuery { group: Some("shop".to_owned()), ..EnvironmentQuery::default() };
        assert_eq!(of_sources(&format!("{filters}&discovered=true")), group);
        let of_project = of_sources("project=shop/web&slug=live&name=live&discovered=true");
        assert_eq!(
            (of_project.project.as_deref(), of_project.slug.as_deref(), of_project.name),
            (Some("shop/web"), Some("live"), None)
        );
    }

    #[test]
    fn pages_are_in_order_of_project_and_slug() {
        let environment = |id, project: &str, slug: &str| Environment {
            id,
            project: project.to_owned(),
            slug: slug.to_owned(),
            name: slug.to_owned(),
            tier: Tier::Other,
            group: None,
            agents: Vec::new(),
        };
        let all = vec![environment(1, "b", "x"), environment(2, "a", "y"), environment(3, "a", "x")];
        let page = |query: &str| {
            let (selection, next) = parse_environments(query).unwrap().page(all.clone().into());
            (selection.environments.iter().map(|it| it.id).collect::<Vec<_>>(), next)
        };
        assert_eq!(page(""), (vec![1, 2, 3], None), "without a limit, it is the order of the sources");
        assert_eq!(page("limit=2"), (vec![3, 2], Some("a:y".to_owned())));
        assert_eq!(page("limit=2&continue=a:y"), (vec![1], None));
        assert_eq!(page("limit=1&continue=a:x:y"), (vec![1], None), "the path of a project may have a colon");
        assert_eq!(page("continue=a:xx"), (vec![2, 1], None), "the last one was deleted meanwhile");
    }
}
