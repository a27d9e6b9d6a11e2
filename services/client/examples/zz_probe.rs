use faultline_client::*;
use faultline_proto::{Failure, a2a::*};
#[tokio::main]
async fn main() {
    let url = "127.0.0.1:9911";
    for b in Binding::ALL {
        println!("== {b}");
        let c = Client::builder(url).binding(b).connect().await.unwrap();
        println!("run {:?}", c.run("a b c").await.map(|a| a.text()));
        println!("message {:?}", c.run("message").await);
        let e = c.run("fail").await.unwrap_err();
        println!("fail {e} artifacts {} history {}", e.task().unwrap().artifacts.len(), e.task().unwrap().history.len());
        let e = c.run("ask").await.unwrap_err();
        println!("ask {e}");
        let id = e.task_id().unwrap().to_owned();
        println!("answered {:?}", c.run(text("Bob is here").to_task(&id)).await.map(|a| a.text()));
        println!("wait ended {:?}", c.wait(&id).await.map(|a| a.text()));
        println!("get missing {:?}", c.task("nope").await.map_err(|e| e.to_string()));
        println!("cancel ended {:?}", c.cancel(&id).await.map_err(|e| Failure::from(e).row().name));
        println!("list {:?}", c.list_tasks(ListTasksRequest{page_size:Some(2),..Default::default()}).await.map(|l| (l.tasks.len(), l.total_size)));
        println!("list bad {:?}", c.list_tasks(ListTasksRequest{page_size:Some(2000),..Default::default()}).await.map_err(|e| { let f = Failure::from(e); (f.row().name, f.violations.clone(), f.public_message.clone()) }));
        let sent = c.send(text("x y z w").return_immediately()).await.unwrap();
        let tid = sent.task().unwrap().id.clone();
        let p = c.create_push_config(TaskPushNotificationConfig{task_id:tid.clone(),url:"http://127.0.0.1:1/x".into(),id:"p1".into(),..Default::default()}).await;
        println!("push {:?}", p.map(|p| p.id).map_err(|e| e.to_string()));
        println!("pushes {:?}", c.list_push_configs(ListTaskPushNotificationConfigsRequest{task_id:tid.clone(),..Default::default()}).await.map(|p| p.configs.len()).map_err(|e| e.to_string()));
        println!("get push {:?}", c.get_push_config(GetTaskPushNotificationConfigRequest{task_id:tid.clone(),id:"p1".into(),..Default::default()}).await.map(|p| p.url).map_err(|e| e.to_string()));
        println!("del push {:?}", c.delete_push_config(DeleteTaskPushNotificationConfigRequest{task_id:tid.clone(),id:"p1".into(),..Default::default()}).await.map_err(|e| e.to_string()));
        println!("wait {:?}", c.wait(&tid).await.map(|a| a.text()));
        println!("extended {:?}", c.extended_card().await.map(|c| c.name).map_err(|e| e.to_string()));
        println!("empty {:?}", c.send(Draft::new([])).await.map_err(|e| e.to_string()));
        if std::env::args().nth(1).is_some() {
            let t = std::time::Instant::now();
            println!("quiet {:?} {:?}", c.run("quiet").await.map(|a| a.task().unwrap().status.clone().unwrap().state()).map_err(|e| e.to_string()), t.elapsed());
        }
    }
}
