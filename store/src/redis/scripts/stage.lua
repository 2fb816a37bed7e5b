-- Writes some of a replica's records to the key that `join` renames. The first call deletes its old content.
-- KEYS: next routes. ARGV: generation, TTL in ms, 1 for the first call or 0, then pairs of agent and record.
if ARGV[3] == '1' then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'generation', ARGV[1], unpack(ARGV, 4))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
