// A small program for mongosh: keeps an inventory and says what must be ordered.
db.inventory.drop();
db.inventory.createIndex({ kind: 1 }, { unique: true });
const deliveries = [["bolt", 40], ["nut", 25], ["bolt", 10], ["gear", 5]];
for (const [kind, pieces] of deliveries) {
  db.inventory.updateOne({ kind }, { $inc: { pieces }, $push: { log: { pieces, at: new Date() } } }, { upsert: true });
}
const taken = db.inventory.findOneAndUpdate({ kind: "bolt", pieces: { $gte: 20 } }, { $inc: { pieces: -20 } });
if (taken.pieces !== 50) throw new Error(`expected 50 bolts, not ${taken.pieces}`);
const [sum] = db.inventory.aggregate([{ $group: { _id: null, pieces: { $sum: "$pieces" } } }]).toArray();
const low = db.inventory.countDocuments({ pieces: { $lt: 10 } });
print(`inventory: ${db.inventory.countDocuments()} kinds, ${sum.pieces} pieces, ${low} to order`);
