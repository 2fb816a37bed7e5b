-- Claims a look at a version of a repository, or records the result of one.
-- KEYS: look. ARGV: TTL in ms, then the result; or '', the greatest age of a record and that of a claim, in ms.
-- Returns -1 and '' if the caller looks, or the age in ms and the result of the last look, which is '' while it runs.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[2] == '' then
  local stored = redis.pcall('GETRANGE', KEYS[1], 0, 63)
  local at, result = string.match(type(stored) == 'string' and stored or '', '^%[1,(%d+),"(%x*)"%]$')
  local age = at and now - tonumber(at) or -1
  -- A forged time is in the future, or as old as a look that took place.
  if age >= 0 and age <= tonumber(result == '' and ARGV[4] or ARGV[3]) then return { age, result } end
end
redis.call('SET', KEYS[1], string.format('[1,%.0f,"%s"]', now, ARGV[2]), 'PX', ARGV[1])
return { -1, '' }
