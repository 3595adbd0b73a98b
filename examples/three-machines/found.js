// Founds the cluster, once all servers run: mongosh --nodb found.js
// Each set gets its three members, then the shards are added through a router.
const machines = ["machine1", "machine2", "machine3"];

function found(set, port) {
  const server = new Mongo(`mongodb://${machines[0]}:${port}/?directConnection=true`);
  const members = machines.map((machine, _id) => ({ _id, host: `${machine}:${port}` }));
  server.getDB("admin").runCommand({ replSetInitiate: { _id: set, members } });
}

found("config", 27019);
found("shard0", 27020);
found("shard1", 27021);

const router = new Mongo(`mongodb://${machines[0]}:27017`).getDB("admin");
for (const [set, port] of [["shard0", 27020], ["shard1", 27021]]) {
  const hosts = machines.map((machine) => `${machine}:${port}`).join(",");
  printjson(router.runCommand({ addShard: `${set}/${hosts}` }));
}
