-- Tries each command that the other scripts run, on a key of its own.
-- KEYS: scratch. ARGV: channel, event.
-- Returns the output of INFO, '' if it failed, then the error of each command that failed.
local key = KEYS[1]
local info = redis.pcall('INFO', 'server')
local found = { type(info) == 'string' and info or '' }
for _, command in ipairs({
  { 'SET', key, '1', 'PX', 10000 }, { 'GET', key }, { 'GETRANGE', key, 0, 1 }, { 'EXISTS', key }, { 'TYPE', key }, { 'DEL', key },
  { 'HSET', key, 'a', '1' }, { 'HGET', key, 'a' }, { 'HMGET', key, 'a' }, { 'HKEYS', key }, { 'HLEN', key }, { 'HSTRLEN', key, 'a' }, { 'HGETALL', key },
  { 'HSCAN', key, '0' }, { 'HEXISTS', key, 'a' },
  { 'PEXPIRE', key, 10000 }, { 'PTTL', key }, { 'RENAME', key, key }, { 'HDEL', key, 'a' }, { 'SADD', key, 'a' }, { 'SRANDMEMBER', key, 1 },
  { 'SREM', key, 'a' }, { 'DEL', key }, { 'LPUSH', key, 'a' }, { 'LTRIM', key, 0, 0 }, { 'LRANGE', key, 0, 0 },
  { 'RPUSH', key, 'a' }, { 'LLEN', key }, { 'LPOP', key }, { 'LREM', key, 1, 'a' }, { 'DEL', key },
  { 'XADD', key, '1-1', 'a', 'b' }, { 'XLEN', key }, { 'XRANGE', key, '-', '+', 'COUNT', 1 },
  { 'XREVRANGE', key, '+', '-', 'COUNT', 1 }, { 'XDEL', key, '1-1' },
  { 'DEL', key }, { 'ZADD', key, '1', 'a' }, { 'ZCARD', key }, { 'ZSCORE', key, 'a' }, { 'ZRANGE', key, 0, 0 }, { 'ZREM', key, 'a' },
  { 'ZREMRANGEBYSCORE', key, 0, 1 }, { 'ZREMRANGEBYRANK', key, 0, 0 }, { 'DEL', key }, { 'TIME' }, { 'PUBLISH', ARGV[1], ARGV[2] },
}) do
  local answer = redis.pcall(unpack(command))
  if type(answer) == 'table' and answer.err then found[#found + 1] = command[1] .. ': ' .. answer.err end
end
return found
