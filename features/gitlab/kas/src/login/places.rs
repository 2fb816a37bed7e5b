//! The projects and groups of the lists `user_access`.

use std::collections::HashSet;

use super::members::Place;
use crate::agent_facts::AdmittedUsers;

/// The most places that one agent has before those of the next one, so that no configuration hides the agents of others.
const PLACES_OF_TURN: usize = 100;

/// Returns the projects and groups of a list `user_access`, and the groups above them.
pub(super) fn places(admitted: &AdmittedUsers) -> impl Iterator<Item = Place> {
    let projects = admitted.projects.iter().cloned().map(Place::Project);
    projects.chain(admitted.groups.iter().flat_map(|path| Place::with_groups_above(path)))
}

/// Returns the different places of all agents, at most `max`, and whether these are all of them. Agents take turns.
pub(super) fn places_in_turns(lists: Vec<Vec<Place>>, max: usize) -> (Vec<Place>, bool) {
    let turns = lists.iter().map(|list| list.len().div_ceil(PLACES_OF_TURN)).max().unwrap_or_default();
    let of_turn = |turn: usize| lists.iter().filter_map(move |list| list.chunks(PLACES_OF_TURN).nth(turn));
    let mut seen = HashSet::new();
    let mut asked: Vec<_> = Vec::new();
    for place in (0..turns).flat_map(of_turn).flatten().filter(|place| seen.insert(*place)) {
        if asked.len() == max {
            return (asked, false);
        }
        asked.push(place.clone());
    }
    (asked, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(name: &str, count: usize) -> Vec<Place> {
        (0..count).map(|number| Place::Project(format!("{name}/{number}"))).collect()
    }

    #[test]
    fn no_agent_takes_the_places_of_another_one() {
        let (asked, is_complete) = places_in_turns(vec![list("a", 1000), list("b", 30)], 2_000);
        assert_eq!((asked.len(), is_complete), (1030, true), "all are read");
        let (asked, is_complete) = places_in_turns(vec![list("a", 1000), list("b", 250)], 300);
        assert!(!is_complete);
        let count = |name: &str| {
            let of = |place: &&Place| matches!(place, Place::Project(path) if path.starts_with(name));
            asked.iter().filter(of).count()
        };
        assert_eq!((count("a/"), count("b/")), (200, 100));
        let (asked, is_complete) = places_in_turns(vec![list("a", 300), list("a", 300)], 300);
        assert_eq!((asked.len(), is_complete), (300, true), "each is asked about once");
        assert_eq!(places_in_turns(Vec::new(), 0), (Vec::new(), true));
    }
}
