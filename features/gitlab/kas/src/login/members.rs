//! The memberships of a user: the question to the GraphQL API of GitLab, and its answer.
//!
//! REST would need two requests for each project and each group: its answer about a group does not have the access of the user. GraphQL
//! answers about many of them at once. That about a project is the access by any way. That about a group is the direct membership alone
//! (`max_member_access_for_group_ids`), so that kas asks about the groups above it, too.

use proto::agent_configuration::Role;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The most places of one question. Each of them has a complexity of four, and GitLab allows 200 to clients that it does not know, and
/// 250 to others.
pub(super) const MAX_PLACES: usize = 45;
/// The roles, each with its access level, the least one first, as GitLab names them in its answers about users.
const ROLES: [(u64, &str); 5] =
    [(10, "guest"), (20, "reporter"), (30, "developer"), (40, "maintainer"), (50, "owner")];

/// A project or a group, by its full path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Project(String),
    Group(String),
}

/// The access of a user to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlaceAccess {
    /// The id of the project or the group.
    pub(super) id: u64,
    /// The access level, as the API of GitLab has it.
    level: u64,
}

/// A user of GitLab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) id: u64,
    pub(super) username: String,
}

/// The answer about a user and the places of a question, in their order. A place that the user does not see has none.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MemberAnswer {
    pub(super) member: Member,
    pub(super) places: Vec<Option<PlaceAccess>>,
}

/// The reason for which a response is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The token is that of nobody.
    Anonymous,
    /// GitLab has refused the question, or sent something else. The text is for logs and people.
    Invalid(String),
}

#[derive(Deserialize)]
struct Response {
    data: Option<Map<String, Value>>,
    #[serde(default)]
    errors: Vec<ResponseError>,
}

#[derive(Deserialize)]
struct ResponseError {
    message: String,
}

#[derive(Deserialize)]
struct UserNode {
    id: String,
    username: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PlaceNode {
    id: String,
    max_access_level: Option<AccessLevel>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccessLevel {
    integer_value: Option<u64>,
}

impl Place {
    /// Returns the group and all groups above it.
    pub(super) fn with_groups_above(path: &str) -> impl Iterator<Item = Self> {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        ends.map(|end| Self::Group(path[..end].to_owned()))
    }
}

impl PlaceAccess {
    /// Returns the access to a group whose members are those of the groups above it, too.
    pub(super) fn inherited(self, above: impl Iterator<Item = Self>) -> Self {
        Self { level: above.map(|access| access.level).fold(self.level, u64::max), ..self }
    }

    /// Returns the greatest role, or `None` with less than the role of a developer, which may use no agent.
    pub(super) fn role(self) -> Option<Role> {
        match self.level {
            50.. => Some(Role::Owner),
            40..50 => Some(Role::Maintainer),
            30..40 => Some(Role::Developer),
            ..30 => None,
        }
    }

    /// Returns the names of all roles that the access includes, as RBAC names them.
    pub(super) fn roles(self) -> Vec<String> {
        let included = ROLES.into_iter().filter(|(level, _)| *level <= self.level);
        included.map(|(_, name)| name.to_owned()).collect()
    }
}

/// Returns the body of the question about the user of the token and these places, at most [`MAX_PLACES`].
pub(super) fn question(places: &[Place]) -> Value {
    let (mut parameters, mut fields, mut variables) = (Vec::new(), Vec::new(), Map::new());
    for (index, place) in places.iter().enumerate() {
        let (kind, path) = match place {
            Place::Project(path) => ("project", path),
            Place::Group(path) => ("group", path),
        };
        parameters.push(format!("$p{index}: ID!"));
        fields.push(format!(
            "p{index}: {kind}(fullPath: $p{index}) {{ id maxAccessLevel {{ integerValue }} }}"
        ));
        variables.insert(format!("p{index}"), path.as_str().into());
    }
    let parameters =
        if parameters.is_empty() { String::new() } else { format!("({})", parameters.join(", ")) };
    let fields = fields.join(" ");
    let query = format!("query{parameters} {{ currentUser {{ id username }} {fields} }}");
    json!({"query": query, "variables": variables})
}

/// Returns the answer in the body of a response to a question with this number of places.
pub(super) fn answer(body: Value, places: usize) -> Result<MemberAnswer, NoAnswer> {
    let invalid = |what: &str| NoAnswer::Invalid(what.to_owned());
    let Response { data, errors } =
        serde_json::from_value(body).map_err(|_| invalid("its response is not one of GraphQL"))?;
    if let Some(ResponseError { message }) = errors.into_iter().next() {
        let message: String = message.chars().filter(|c| !c.is_control()).take(200).collect();
        return Err(NoAnswer::Invalid(message));
    }
    let mut data = data.ok_or_else(|| invalid("its response has no data"))?;
    let user = data.remove("currentUser").unwrap_or_default();
    if user.is_null() {
        return Err(NoAnswer::Anonymous);
    }
    let incomplete = || invalid("its response lacks a part of the user or of a project");
    let UserNode { id, username } = serde_json::from_value(user).map_err(|_| incomplete())?;
    let member = Member { id: number(&id).ok_or_else(incomplete)?, username };
    let places = (0..places).map(|index| {
        let node = data.remove(&format!("p{index}")).unwrap_or_default();
        let node: Option<PlaceNode> = serde_json::from_value(node).map_err(|_| incomplete())?;
        let Some(PlaceNode { id, max_access_level }) = node else { return Ok(None) };
        let level = max_access_level.and_then(|level| level.integer_value).unwrap_or_default();
        Ok(Some(PlaceAccess { id: number(&id).ok_or_else(incomplete)?, level }))
    });
    Ok(MemberAnswer { member, places: places.collect::<Result<_, _>>()? })
}

/// Returns the number of an id such as `gid://gitlab/Project/42`.
fn number(id: &str) -> Option<u64> {
    id.rsplit('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(id: u64, level: u64) -> PlaceAccess {
        PlaceAccess { id, level }
    }

    #[test]
    fn question_names_paths_in_variables_alone() {
        let places = [Place::Project("a/b".to_owned()), Place::Group("g\") { x }".to_owned())];
        let question = question(&places);
        assert_eq!(
            question["query"],
            "query($p0: ID!, $p1: ID!) { currentUser { id username } \
             p0: project(fullPath: $p0) { id maxAccessLevel { integerValue } } \
             p1: group(fullPath: $p1) { id maxAccessLevel { integerValue } } }"
        );
        assert_eq!(question["variables"], json!({"p0": "a/b", "p1": "g\") { x }"}));
        assert_eq!(self::question(&[])["query"], "query { currentUser { id username }  }");
    }

    #[test]
    fn answer_has_the_user_and_the_places_in_their_order() {
        let level = |value: u64| json!({"integerValue": value});
        let body = json!({"data": {
            "currentUser": {"id": "gid://gitlab/User/5", "username": "alice"},
            "p0": {"id": "gid://gitlab/Project/42", "maxAccessLevel": level(40)},
            "p1": null,
            "p2": {"id": "gid://gitlab/Group/7", "maxAccessLevel": null},
        }});
        let member = Member { id: 5, username: "alice".to_owned() };
        let places = vec![Some(access(42, 40)), None, Some(access(7, 0)), None];
        assert_eq!(answer(body, 4), Ok(MemberAnswer { member, places }));
    }

    #[test]
    fn response_without_an_answer_says_why() {
        let user = json!({"id": "gid://gitlab/User/5", "username": "alice"});
        for (body, expected) in [
            (json!({"data": {"currentUser": null}}), NoAnswer::Anonymous),
            (json!({"data": {}}), NoAnswer::Anonymous),
            (
                json!({"errors": [{"message": "too\ncomplex"}], "data": null}),
                NoAnswer::Invalid("toocomplex".into()),
            ),
            (json!([]), NoAnswer::Invalid("its response is not one of GraphQL".into())),
            (json!({}), NoAnswer::Invalid("its response has no data".into())),
            (
                json!({"data": {"currentUser": user, "p0": {"id": "x"}}}),
                NoAnswer::Invalid("its response lacks a part of the user or of a project".into()),
            ),
        ] {
            assert_eq!(answer(body.clone(), 1), Err(expected), "{body}");
        }
    }

    #[test]
    fn access_has_all_roles_up_to_its_level() {
        for (level, role, roles) in [
            (0, None, &[][..]),
            (10, None, &["guest"]),
            (25, None, &["guest", "reporter"]),
            (30, Some(Role::Developer), &["guest", "reporter", "developer"]),
            (40, Some(Role::Maintainer), &["guest", "reporter", "developer", "maintainer"]),
            (50, Some(Role::Owner), &["guest", "reporter", "developer", "maintainer", "owner"]),
        ] {
            assert_eq!(
                (access(1, level).role(), access(1, level).roles()),
                (role, roles.iter().map(|&role| role.into()).collect())
            );
        }
    }

    #[test]
    fn members_of_the_groups_above_are_members_of_a_group() {
        let groups: Vec<_> = Place::with_groups_above("a/b/c").collect();
        assert_eq!(groups, ["a", "a/b", "a/b/c"].map(|path| Place::Group(path.to_owned())));
        assert_eq!(access(7, 0).inherited([access(1, 30), access(2, 10)].into_iter()), access(7, 30));
        assert_eq!(access(7, 40).inherited([access(1, 30)].into_iter()), access(7, 40));
    }
}
