// Founds the cluster, once all servers run: mongosh --nodb found.js
// Each set gets its three members, then the shards are added through a router. May be run again.
const machines = ["machine1", "machine2", "machine3"];
const ALREADY_INITIALIZED = 23;

function found(set, port) {
  const server = new Mongo(`mongodb://${machines[0]}:${port}/?directConnection=true`);
  const members = machines.map((machine, _id) => ({ _id, host: `${machine}:${port}` }));
  try {
    server.getDB("admin").runCommand({ replSetInitiate: { _id: set, members } });
  } catch (error) {
    if (error.code !== ALREADY_INITIALIZED) throw error;
  }
}

// A set has just been founded: it may take a moment until it has a primary.
function insist(database, command) {
  for (let attempt = 1; ; attempt++) {
    try {
      return database.runCommand(command);
    } catch (error) {
      if (attempt === 60) throw error;
      sleep(1000);
    }
  }
}

found("config", 27019);
found("shard0", 27020);
found("shard1", 27021);

const router = new Mongo(`mongodb://${machines[0]}:27017`).getDB("admin");
for (const [set, port] of [["shard0", 27020], ["shard1", 27021]]) {
  const hosts = machines.map((machine) => `${machine}:${port}`).join(",");
  printjson(insist(router, { addShard: `${set}/${hosts}` }));
}
