//! The steps of `agentk check` for the rights that projects need.

mod rights;

use agentk_core::{
    check_report::{CheckReport, REVIEW_HINT, StepError, failed},
    feature::{CheckContext, FeatureCheck, FeatureOptions},
    services::kube_client::Restrictions,
};
use futures_util::{FutureExt as _, future::LocalBoxFuture};
use kube_cluster::KubeCluster;

use super::{GitopsMetrics, cluster_client};

const RUN_AS_HINT: &str =
    "agentk needs the right to impersonate the service accounts of run_as: see docs/gitops.md";

/// The cluster for GitOps and the namespace of agentk.
struct GitopsCheck {
    cluster: KubeCluster,
    namespace: String,
}

/// Returns the steps.
pub(super) fn check(
    _: &FeatureOptions<'_>,
    context: &CheckContext,
) -> anyhow::Result<Option<Box<dyn FeatureCheck>>> {
    let CheckContext { kubernetes, namespace, .. } = context;
    let cluster = cluster_client(kubernetes.clone(), &Restrictions::default(), GitopsMetrics::default());
    Ok(Some(Box::new(GitopsCheck { cluster, namespace: namespace.clone() })))
}

impl FeatureCheck for GitopsCheck {
    fn run<'a>(&'a self, cluster_answers: bool, report: &'a mut CheckReport<'_>) -> LocalBoxFuture<'a, ()> {
        async move {
            if cluster_answers {
                report.set_subject("gitops");
                let result = self.check_rights(report).await;
                report.end(result);
            }
        }
        .boxed_local()
    }
}

impl GitopsCheck {
    /// Looks at the rights for the projects that were synced before. Others are not known without kas.
    async fn check_rights(&self, report: &mut CheckReport<'_>) -> Result<(), StepError> {
        let Self { cluster, namespace } = self;
        let own = rights::own_rights(cluster, namespace).await.map_err(failed("rights", REVIEW_HINT))?;
        if own.is_empty() {
            report.ok("rights", format!("agentk may write its inventories and its Lease in {namespace}"));
        } else {
            let what = format!(
                "agentk may not {}, so that it applies no manifests from Git: set gitops.enabled of the chart, or start agentk with --no-gitops",
                own.describe()
            );
            report.warning("rights", what);
        }
        let events = rights::event_rights(cluster, namespace).await.map_err(failed("rights", REVIEW_HINT))?;
        if !events.is_empty() {
            report.warning(
                "Events",
                format!("agentk may not {}, so that projects have none", events.describe()),
            );
        }
        if !own.is_empty() {
            // agentk may not list its inventories.
            return Ok(());
        }
        let hint = "the inventories of projects are ConfigMaps in the namespace of agentk";
        let projects = rights::stored_projects(cluster, namespace).await.map_err(failed("projects", hint))?;
        for project in projects {
            let missing = project.rights(cluster).await.map_err(failed("projects", RUN_AS_HINT))?;
            if missing.is_empty() {
                report.ok(&project.id, project.describe());
                continue;
            }
            report.failed(&project.id, format!("{} may not {}", project.user(), missing.describe()));
            report.add_missing_roles(&missing.roles());
        }
        Ok(())
    }
}
