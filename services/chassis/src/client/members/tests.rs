//! Name resolution of the coordinators, with a resolver of the tests.

use std::{sync::Mutex, time::Duration};

use super::*;
use crate::net::network::Network;

/// A resolver that returns the addresses of `addresses`.
fn mesh_config(addresses: &Arc<Mutex<io::Result<Vec<SocketAddr>>>>) -> MeshConfig {
    let addresses = Arc::clone(addresses);
    let mesh_config = Resolver::new(move |name, _| {
        assert_eq!(name, "hub.mesh", "addresses need no look");
        let addresses = match &*addresses.lock().unwrap() {
            Ok(found) => Ok(found.clone()),
            Err(error) => Err(error.kind().into()),
        };
        async move { addresses }
    });
    MeshConfig { resolver: Some(mesh_config), ..MeshConfig::default() }
}

fn at(members: &[Member]) -> Vec<String> {
    members.iter().map(|member| member.at().unwrap().to_string()).collect()
}

async fn until(members: &Members, wanted: &[&str]) {
    let mut watch = members.watch();
    let seen = watch.wait_for(|now| at(now) == wanted);
    let seen = timeout(Duration::from_secs(60), seen).await.map(|seen| seen.unwrap().len());
    assert!(seen.is_ok(), "{wanted:?}, but {:?}", at(&members.now()));
}

#[tokio::test(start_paused = true)]
async fn members_follow_dns_and_survive_a_failed_resolution() {
    let [one, other, third] = ["10.0.0.1:81", "10.0.0.2:81", "10.0.0.3:81"];
    let found = |them: &[&str]| Ok(them.iter().map(|at| at.parse().unwrap()).collect());
    let addresses = Arc::new(Mutex::new(found(&[other, one])));
    let members = Members::new(&mesh_config(&addresses), "http://hub.mesh:81").unwrap();
    assert_eq!(members.now(), [], "not before it was asked");
    let following = tokio::spawn(members.clone().run());
    until(&members, &[one, other]).await;
    *addresses.lock().unwrap() = found(&[one, third]);
    until(&members, &[one, third]).await;
    *addresses.lock().unwrap() = Err(io::ErrorKind::NotFound.into());
    sleep(limits::MEMBERS_REFRESH_INTERVAL * 3).await;
    assert_eq!(at(&members.now()), [one, third]);
    *addresses.lock().unwrap() = found(&[other]);
    until(&members, &[other]).await;
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn refresh_resolves_at_once() {
    let addresses = Arc::new(Mutex::new(Ok(vec!["10.0.0.1:81".parse().unwrap()])));
    let members = Members::new(&mesh_config(&addresses), "hub.mesh:81").unwrap();
    let following = tokio::spawn(members.clone().run());
    until(&members, &["10.0.0.1:81"]).await;
    *addresses.lock().unwrap() = Ok(vec!["10.0.0.2:81".parse().unwrap()]);
    let asked = tokio::time::Instant::now();
    members.refresh();
    until(&members, &["10.0.0.2:81"]).await;
    assert!(asked.elapsed() <= limits::MEMBERS_REFRESH_PAUSE * 2, "{:?}", asked.elapsed());
    following.abort();
}

#[tokio::test]
async fn members_are_the_distinct_addresses_of_all_entries() {
    let addresses = Arc::new(Mutex::new(Ok(vec!["10.0.0.2:81".parse().unwrap()])));
    let text = " http://10.0.0.1:81, http://hub.mesh:81,http://10.0.0.2:81,[::1]:7 ,";
    let members = Members::new(&mesh_config(&addresses), text).unwrap();
    assert_eq!(at(&members.now()), ["10.0.0.1:81", "10.0.0.2:81", "[::1]:7"]);
    let following = tokio::spawn(members.clone().run());
    let mut watch = members.watch();
    let named = |now: &Vec<Member>| now.iter().any(|member| member.target == 1);
    timeout(Duration::from_secs(20), watch.wait_for(named)).await.unwrap().unwrap();
    assert_eq!(at(&members.now()), ["10.0.0.1:81", "10.0.0.2:81", "[::1]:7"]);
    following.abort();
    for nothing in ["", " , ", "http://a b", "http://10.0.0.1:81,ftp://x"] {
        assert!(Members::new(&MeshConfig::default(), nothing).is_err(), "{nothing}");
    }
}

#[tokio::test]
async fn localhost_is_resolved_by_the_system_and_not_on_an_in_process_network() {
    let members = Members::new(&MeshConfig::default(), "http://localhost:81").unwrap();
    let following = tokio::spawn(members.clone().run());
    let mut watch = members.watch();
    let here = |now: &Vec<Member>| !now.is_empty();
    timeout(Duration::from_secs(20), watch.wait_for(here)).await.unwrap().unwrap();
    assert!(members.now().iter().all(|member| member.at().unwrap().ip().is_loopback()));
    following.abort();
    let inside = MeshConfig { network: Some(Network::new()), ..MeshConfig::default() };
    let members = Members::new(&inside, "127.0.0.1:1,localhost:2").unwrap();
    assert_eq!(members.now().len(), 2, "a name there is one that cannot be dialled");
}
